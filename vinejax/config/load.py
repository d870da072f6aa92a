"""Config files to settings.

A config file is plain Python: `get_config()` starts from `default()`, a ConfigDict of
`ml_collections` with every field of `core/settings.py`, and changes some. `from_dict` makes frozen
dataclasses of the result.
"""

import dataclasses
import difflib
import inspect
import os
import re
import runpy
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ml_collections import config_dict

from vinejax.core.errors import ConfigError, UserError
from vinejax.core.plugins import failure
from vinejax.core.settings import Config, MethodSettings, flatten
from vinejax.methods import METHODS, find_method

# The methods' own settings by the name of their section.
SECTIONS = {
    method.settings.section: method.settings
    for method in METHODS.values()
    if method.settings.section
}
FIELD_NAMES = [
    *(name for name, _ in flatten(Config())),
    *(name for kind in SECTIONS.values() for name, _ in flatten(kind(), f"{kind.section}.")),
]


class Section(config_dict.ConfigDict):
    """A group of fields, which says in words what is of the wrong type."""

    def __setitem__(self, name: str, value: Any) -> None:
        try:
            super().__setitem__(name, value)
        except TypeError:
            kind = type(self[name])
            if isinstance(before := self.get_ref(name), Setting):
                kind = before.get_type()
            wanted = "a group of fields" if kind is Section else f"of type {kind.__name__}"
            raise TypeError(f"{name} = {value!r}: must be {wanted}") from None


class Fields(Section):
    """The fields of `Config` as a ConfigDict, for config files and the command line to change."""

    # Attributes come before keys: without this property, `values` would be a mapping's method.
    @property
    def values(self) -> Any:
        return self["values"]

    def __setitem__(self, name: str, value: Any) -> None:
        """Sets a field; where it names a method of a user's own, its settings become fields.

        Those of a method of a user's own that was named before are no fields any more.
        """
        if name != "method" or not isinstance(value, str):
            super().__setitem__(name, value)
            return
        before = own_section(str(self.get("method") or ""))
        super().__setitem__(name, value)
        after = own_section(value)
        if before is not after:
            with self.unlocked():
                if before is not None:
                    del self[before.section]
                if after is not None:
                    super().__setitem__(after.section, _settings(after()))

    # For type checkers, which could not know the fields of a field.
    def __getattr__(self, attribute: str) -> Any:
        return super().__getattr__(attribute)


def own_section(method: str) -> type[MethodSettings] | None:
    """The settings of a method of a user's own; None without any, and for ours."""
    kind = find_method(method).settings if "." in method else MethodSettings
    return kind if kind.section else None


class Setting(config_dict.FieldReference):
    """A field's value, of type `kind`; `is_set` tells whether it was set after `default()`."""

    def __init__(self, value: Any, kind: type):
        super().__init__(value, kind)
        self.is_set = False

    def set(self, value: Any, type_safe: bool = True) -> None:
        super().set(value, type_safe)
        self.is_set = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Keeps `is_set` when a setting is copied or unpickled."""
        super().__setstate__(state)
        self.is_set = state["is_set"]


def default() -> Fields:
    """Every field at its default, for a config file to change. Optional fields accept None."""

    own = {name: _settings(kind()) for name, kind in SECTIONS.items()}
    return Fields(dict(_settings(Config()).items(preserve_field_references=True)) | own)


def _settings(section: Any) -> Section:
    """The fields of a section, each a `Setting` or a section of its own."""
    hints = get_type_hints(type(section))
    fields = {}
    for name, value in vars(section).items():
        if dataclasses.is_dataclass(value):
            fields[name] = _settings(value)
        elif isinstance(value, dict):  # rows that the config file adds
            fields[name] = config_dict.ConfigDict(value, type_safe=False)
        elif name != "own":
            kind = type(value) if value is not None else get_args(hints[name])[0]
            fields[name] = Setting(value, kind)
    return Section(fields)


def fields_set(fields: config_dict.ConfigDict, prefix: str = "") -> set[str]:
    """Dotted names of the fields that were set, even if to their default.

    A section that was replaced by a new section, such as `default().values`, has none.
    """
    names = set()
    for name, value in fields.items(preserve_field_references=True):
        if isinstance(value, config_dict.ConfigDict):
            names |= fields_set(value, f"{prefix}{name}.")
        elif isinstance(value, Setting) and value.is_set:
            names.add(prefix + name)
    return names


def locate(path: str) -> tuple[str, list[str]]:
    """(config file, arguments of its `get_config`): text after a colon in `path` is an argument."""
    file, colon, argument = path.partition(":")
    return file, [argument] if colon else []


def from_file(file: str, neighbour: str) -> Fields:
    """The configuration of the file `neighbour`, a path from the folder of `file`, to change.

    A config file that differs from another in a few fields calls it with its own `__file__`.
    """
    path, arguments = locate(str(Path(file).parent / neighbour))
    return runpy.run_path(path)["get_config"](*arguments)


def load(path: str, name: str = "") -> Fields:
    """The configuration that a config file makes; the text after a colon in `path` is its argument.

    Raises UserError, with the line, if the file is missing or fails; `name` stands for the path.
    """
    file, arguments = locate(os.path.expanduser(path))
    if not Path(file).is_file():
        rule = "is a folder, not a file" if Path(file).is_dir() else "no such file"
        raise UserError(f"{name or path}: {rule}; see configs/")
    try:
        module = runpy.run_path(file)
        if "get_config" not in module:
            raise UserError(f"{file}: defines no get_config(); see configs/tiny.py")
        if arguments and not inspect.signature(module["get_config"]).parameters:
            raise UserError(f"{file}: get_config() takes no argument; leave out :{arguments[0]}")
        config = module["get_config"](*arguments)
    except UserError:
        raise
    except Exception as error:
        raise UserError(failure(error, file)) from error
    if not isinstance(config, Fields):
        raise UserError(f"{file}: get_config() must return what default() gave it")
    return config


def override(fields: Fields, values: Mapping[str, Any]) -> None:
    """Sets fields by their dotted names, such as `ppo.clip`.

    Raises ConfigError for a name that is no field's, and a value of another type.
    """
    for name, value in values.items():
        check_name(name, fields)
        *sections, leaf = name.split(".")
        section: Any = fields
        for part in sections:
            section = section[part]
        try:
            section[leaf] = value
        except TypeError:
            kind = section.get_ref(leaf).get_type().__name__
            raise ConfigError(name, f"must be of type {kind}", repr(value)) from None


def default_workdir(config: str) -> str:
    """runs/<config file>, with the argument that `config` has after a colon, if any."""
    file, _, argument = config.partition(":")
    return f"runs/{Path(file).stem}" + (argument and "_" + re.sub(r"\W+", "_", argument))


def from_dict(fields: config_dict.ConfigDict | dict[str, Any]) -> Config:
    """The frozen form of a config file's result. Fields that are left out keep their default.

    Raises ConfigError if a field is unknown (the message names the nearest), of the wrong type, or
    not one of the allowed strings, or if another method's own settings are not at their defaults.
    """
    if not isinstance(fields, (dict, config_dict.ConfigDict)):
        raise ConfigError("config", "must be a group of fields", repr(fields))
    method = fields.get("method", Config().method)
    own = find_method(method).settings if isinstance(method, str) else None
    known = SECTIONS | ({own.section: own} if own and own.section else {})
    shared = {name: value for name, value in fields.items() if name not in known}
    cfg = _dataclass_of(Config, "", shared)
    for name, kind in known.items():
        settings = _dataclass_of(kind, f"{name}.", fields.get(name, {}))
        if kind is own:
            cfg = dataclasses.replace(cfg, own=settings)
            continue
        unset = dict(flatten(kind(), f"{name}."))
        for field, value in flatten(settings, f"{name}."):
            if value != unset[field]:
                raise not_read(field, value, cfg.method)
    return cfg


def not_read(field: str, value: Any, method: str) -> ConfigError:
    """The refusal of a field of a section that this method does not read."""
    names = {field, field.partition(".")[0]}
    owners = [
        name for name, record in METHODS.items() if names & {record.settings.section, *record.reads}
    ]
    rule = f"is read by method = {' or '.join(map(repr, owners))} alone, and this run has"
    return ConfigError(field, f"{rule} {method!r}; leave it out", repr(value))


def check_name(name: str, fields: Fields | None = None) -> None:
    """Raises ConfigError unless `name` is the dotted name of a field, such as `ppo.clip`.

    `fields` may have those of a method of a user's own, too.
    """
    found: Any = fields
    for part in name.split("."):
        found = found.get(part) if isinstance(found, config_dict.ConfigDict) else None
    if name not in FIELD_NAMES and (found is None or isinstance(found, config_dict.ConfigDict)):
        raise _no_such_field(name)


def _no_such_field(name: str) -> ConfigError:
    nearest = _nearest(name)
    if any(known.startswith(name + ".") for known in FIELD_NAMES):
        return ConfigError(name, f"is a group of fields; set one of them, such as {nearest}")
    return ConfigError(name, f"no such field; the nearest one is {nearest}")


def _nearest(name: str) -> str:
    """The valid name that `name` goes on from, or is most like.

    `clip` means `ppo.clip`, so the last part counts twice.
    """
    leaf = name.rpartition(".")[2]

    def likeness(known: str) -> float:
        whole = difflib.SequenceMatcher(None, name, known).ratio()
        return whole + difflib.SequenceMatcher(None, leaf, known.rpartition(".")[2]).ratio()

    return max(FIELD_NAMES, key=lambda known: (name.startswith(f"{known}."), likeness(known)))


def _dataclass_of(kind: type, prefix: str, fields: Any) -> Any:
    """Makes a dataclass from a mapping; `prefix`, such as 'ppo.', names its fields in errors."""
    if not isinstance(fields, (dict, config_dict.ConfigDict)):
        raise ConfigError(prefix[:-1], "must be a group of fields", repr(fields))
    hints = get_type_hints(kind)
    names = {field.name for field in dataclasses.fields(kind)} - {"own"}
    values = {}
    for name, value in fields.items():
        if name not in names:
            raise _no_such_field(f"{prefix}{name}")
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            values[name] = _dataclass_of(hint, f"{prefix}{name}.", value)  # pyright: ignore
        else:
            values[name] = _typed(prefix + name, hint, value)
    return kind(**values)


def _typed(name: str, hint: Any, value: Any) -> Any:
    """`value` as the declared type. Nothing converts but int to float and list to tuple."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is dict:
        if not isinstance(value, (dict, config_dict.ConfigDict)):
            raise ConfigError(name, "must be a dict of groups of fields", repr(value))
        return {
            key: _dataclass_of(parts[1], f"{name}.{key}.", fields) for key, fields in value.items()
        }
    if origin is tuple:
        if not isinstance(value, (tuple, list)):
            raise ConfigError(name, f"must be a tuple: ({value!r},)", repr(value))
        return tuple(_typed(name, parts[0], item) for item in value)
    if any(get_origin(part) is Literal for part in parts):  # `Literal[...] | None`
        choices = next(part for part in parts if part is not types.NoneType)
        return None if value is None else _typed(name, choices, value)
    if origin is Literal:
        if value not in parts:
            raise ConfigError(name, "must be " + " or ".join(map(repr, parts)), repr(value))
        return value
    kinds = parts or (hint,)  # of `int | None`, or of `int`
    if type(value) is int and float in kinds:
        return float(value)
    # isinstance would let True pass for 1.
    if type(value) not in kinds:
        wanted = " or ".join("None" if kind is types.NoneType else kind.__name__ for kind in kinds)
        raise ConfigError(name, f"must be of type {wanted}", repr(value))
    return value
