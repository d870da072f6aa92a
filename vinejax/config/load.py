"""Turns config files into settings.

A config file is plain Python. Its `get_config()` starts from `default()`, a ConfigDict of
`ml_collections` with every field of `core/settings.py`, and changes some fields. `from_dict` makes
frozen dataclasses of the result.
"""

import dataclasses
import difflib
import functools
import inspect
import os
import re
import runpy
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ml_collections import config_dict

from vinejax.core.accessories import contributed, contributed_class
from vinejax.core.errors import ConfigError, UserError
from vinejax.core.plugins import failure, is_importable
from vinejax.core.sections import Section
from vinejax.core.settings import RENAMED, Config, flatten
from vinejax.methods import settings as method_settings

# The settings' classes of this package's methods, by the names of their groups of fields.
METHOD_SECTIONS: dict[str, type[Section]] = {
    kind.section: kind
    for kind in vars(method_settings).values()
    if isinstance(kind, type) and issubclass(kind, Section) and kind.section
}
CORE_GROUPS = {field.name for field in dataclasses.fields(Config)} - {"sections"}


def section_of(name: str) -> type[Section] | None:
    """The class of a group of settings outside the core; None if no group has this name."""
    return METHOD_SECTIONS.get(name) or contributed_class("SECTIONS", name)


def section_names() -> list[str]:
    """The names of all groups of settings outside the core."""
    return [*METHOD_SECTIONS, *contributed("SECTIONS")]


@functools.cache
def field_names() -> list[str]:
    """The dotted names of all fields, including those of methods and of accessories."""
    names = [name for name, _ in flatten(Config())]
    for section in section_names():
        if kind := section_of(section):
            names += [name for name, _ in flatten(kind(), f"{section}.")]
    return names


class FieldGroup(config_dict.ConfigDict):
    """A group of fields; its TypeErrors name the field, the value and the type that is needed."""

    def __setitem__(self, name: str, value: Any) -> None:
        try:
            super().__setitem__(name, value)
        except TypeError:
            kind = type(self[name])
            if isinstance(section_before := self.get_ref(name), Setting):
                kind = section_before.get_type()
            wanted = "a group of fields" if kind is FieldGroup else f"of type {kind.__name__}"
            raise TypeError(f"{name} = {value!r}: must be {wanted}") from None


class Fields(FieldGroup):
    """The fields of `Config` as a ConfigDict, for config files and the command line to change."""

    # Attributes come before keys: without this property, `values` would be a mapping's method.
    @property
    def values(self) -> Any:
        return self["values"]

    def __contains__(self, name: str) -> bool:
        return super().__contains__(name) or section_of(name) is not None

    def __getitem__(self, name: str) -> Any:
        """A field or a group; a group outside the core is added when it is first asked for."""
        if name not in CORE_GROUPS and name not in self.keys() and (kind := section_of(name)):
            self._add(kind)
        return super().__getitem__(name)

    def __setitem__(self, name: str, value: Any) -> None:
        """Sets a field. Setting `method` to a user's own method also adds the method's settings.

        If `method` was a user's own method before, the settings of that method are removed.
        """
        if name != "method" or not isinstance(value, str):
            super().__setitem__(name, value)
            return
        section_before = own_section(str(self.get("method") or ""))
        super().__setitem__(name, value)
        section_after = own_section(value)
        if section_before is not section_after:
            if section_before is not None:
                with self.unlocked():
                    del self[section_before.section]
            if section_after is not None:
                self._add(section_after)

    def _add(self, kind: type[Section]) -> None:
        with self.unlocked():
            super().__setitem__(kind.section, _settings(kind()))

    # Declared for type checkers, which cannot know the fields of a group.
    def __getattr__(self, attribute: str) -> Any:
        return super().__getattr__(attribute)


def own_section(method: str) -> type[Section] | None:
    """The class of the settings of a user's own method.

    None for a method of VineJAX, and for a method that has no settings.
    """
    if "." not in method and not is_importable(method):
        return None
    from vinejax.methods.known import find_method

    found = find_method(method)
    return found.settings if found.is_users and found.settings.section else None


class Setting(config_dict.FieldReference):
    """The value of a field, with its type; `is_set` says whether it was set after `default()`."""

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
    return Fields(dict(_settings(Config()).items(preserve_field_references=True)))


def _settings(group: Any) -> FieldGroup:
    """A group of fields as a ConfigDict: its fields are `Setting`s, its subgroups `FieldGroup`s."""
    hints = get_type_hints(type(group))
    fields = {}
    for name, value in vars(group).items():
        if dataclasses.is_dataclass(value):
            fields[name] = _settings(value)
        elif name == "sections":
            continue
        elif isinstance(value, dict):  # rows that the config file adds
            fields[name] = config_dict.ConfigDict(value, type_safe=False)
        else:
            kind = type(value) if value is not None else get_args(hints[name])[0]
            fields[name] = Setting(value, kind)
    return FieldGroup(fields)


def fields_set(fields: config_dict.ConfigDict, prefix: str = "") -> set[str]:
    """Dotted names of the fields that were set, even if to their default.

    Putting a new section, such as `default().values`, in the place of a section does not count as
    setting its fields.
    """
    names = set()
    for name, value in fields.items(preserve_field_references=True):
        if isinstance(value, config_dict.ConfigDict):
            names |= fields_set(value, f"{prefix}{name}.")
        elif isinstance(value, Setting) and value.is_set:
            names.add(prefix + name)
    return names


def locate(path: str) -> tuple[str, list[str]]:
    """The config file, and the arguments of its `get_config`: the text after a colon, if any."""
    file, colon, argument = path.partition(":")
    return file, [argument] if colon else []


def from_file(file: str, neighbour: str) -> Fields:
    """The configuration of another config file, for a config file that changes a few fields of it.

    Args:
      file: the calling config file, its `__file__`.
      neighbour: path of the other file, relative to the folder of `file`; `:argument` may follow.
    """
    path, arguments = locate(os.path.normpath(Path(file).parent / neighbour))
    return runpy.run_path(path)["get_config"](*arguments)


def load(path: str, name: str = "") -> Fields:
    """The configuration that a config file makes; the text after a colon in `path` is its argument.

    Raises UserError if the file is missing (the error names `name`, by default the path), or if
    the file's code fails (the error names the line).
    """
    file, arguments = locate(os.path.expanduser(path))
    if not Path(file).is_file():
        message = "is a folder, not a file" if Path(file).is_dir() else "no such file"
        raise UserError(f"{name or path}: {message}; see configs/")
    try:
        module = runpy.run_path(file)
        if "get_config" not in module:
            raise UserError(f"{file}: defines no get_config(); see configs/tiny.py")
        if arguments and not inspect.signature(module["get_config"]).parameters:
            raise UserError(f"{file}: get_config() takes no argument; leave out :{arguments[0]}")
        config = module["get_config"](*arguments)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # `exit()` would end the command without a word
        raise UserError(failure(error, file)) from error
    if not isinstance(config, Fields):
        raise UserError(f"{file}: get_config() must return what default() gave it")
    return config


def override(fields: Fields, values: Mapping[str, Any]) -> None:
    """Sets fields by their dotted names, such as `ppo.clip`, and `method` before all others.

    So settings of a user's own method may stand before the method that adds them. Raises
    ConfigError if no field has the name, or if a value has the wrong type.
    """
    for name, value in sorted(values.items(), key=lambda item: item[0] != "method"):
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
    """'runs/tiny' for the config file 'configs/tiny.py', 'runs/tiny_x' for 'configs/tiny.py:x'."""
    file, _, argument = config.partition(":")
    return f"runs/{Path(file).stem}" + (argument and "_" + re.sub(r"\W+", "_", argument))


def from_dict(fields: config_dict.ConfigDict | dict[str, Any]) -> Config:
    """The `Config` with the values of a config file. Fields that are left out have their default.

    `Config.sections` gets the groups that differ from their defaults. Raises ConfigError for a
    field that is unknown (the message names the nearest field), that has the wrong type, or that
    has a text outside the field's list of allowed texts.
    """
    if not isinstance(fields, (dict, config_dict.ConfigDict)):
        raise ConfigError("config", "must be a group of fields", repr(fields))
    method = fields.get("method", Config().method)
    own = own_section(method) if isinstance(method, str) else None
    core, sections = {}, {}
    for name, value in fields.items():
        kind = own if own and name == own.section else section_of(name)
        if name in CORE_GROUPS or kind is None:
            core[name] = value
        elif (settings := _dataclass_of(kind, f"{name}.", value)) != kind():
            sections[name] = settings
    return dataclasses.replace(_dataclass_of(Config, "", core), sections=sections)


def check_name(name: str, fields: Fields | None = None) -> None:
    """Raises ConfigError unless `name` is the dotted name of a field, such as `ppo.clip`.

    The fields of a user's own method are also accepted if `fields` has them.
    """
    field: Any = fields
    for part in name.split("."):
        field = field.get(part) if isinstance(field, config_dict.ConfigDict) else None
    if name not in field_names() and (field is None or isinstance(field, config_dict.ConfigDict)):
        raise _no_such_field(name, [*field_names(), *_own_names(fields)])


def _own_names(fields: Fields | None) -> list[str]:
    """The dotted names of the settings of a user's own method, which `field_names` lacks."""
    section = own_section(str(fields.get("method") or "")) if fields is not None else None
    return [name for name, _ in flatten(section(), f"{section.section}.")] if section else []


def _no_such_field(name: str, names: Sequence[str]) -> ConfigError:
    """The error for a name that is none of `names`, the dotted names of all fields."""
    if name in RENAMED:
        return ConfigError(name, f"has a new name, {RENAMED[name]}; set that field instead")
    if fields := [known for known in names if known.startswith(f"{name}.")]:
        message = f"is a group of fields; set one of them, such as {fields[0]}"
        if fields[0] in field_names():  # not the settings of a user's own method
            message += f"; vinejax --help {name} lists them"
        return ConfigError(name, message)
    group, _, leaf = name.rpartition(".")
    leaves = [known.rpartition(".")[2] for known in names if known.startswith(f"{group}.")]
    namesakes = [known for known in names if known.rpartition(".")[2] == leaf]
    if leaves:
        namesakes = [known for known in namesakes if known.partition(".")[0] in CORE_GROUPS]
    if len(namesakes) > 1 or (leaves and namesakes):
        hint = f"there {'are' if len(namesakes) > 1 else 'is'} {', '.join(namesakes)}"
    elif leaves:
        nearest = _nearest(leaf, leaves)
        others = f"{group} has {', '.join(leaves)}"
        hint = f"the nearest one is {group}.{nearest}" if nearest else others
    else:
        nearest = _nearest(name, names)
        hint = f"the nearest one is {nearest}" if nearest else "vinejax --help lists all"
    return ConfigError(name, f"no such field; {hint}")


def _nearest(name: str, names: Sequence[str]) -> str | None:
    """The field that `name` extends (`ppo.clip` for `ppo.clip.low`), or else the most similar one.

    The similarity of the names' last parts is added to that of the whole names, so that `clip`
    finds `ppo.clip`. The case of letters does not count: `values.K` finds `values.k`. The result is
    None if no field has half of the possible similarity.
    """

    def likeness(known: str) -> float:
        if name.startswith(f"{known}."):
            return 2.0
        ours, theirs = name.lower(), known.lower()
        pairs = ((ours, theirs), (ours.rpartition(".")[2], theirs.rpartition(".")[2]))
        return sum(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)

    nearest = max(names, key=likeness)
    return nearest if likeness(nearest) >= 1.0 else None


def _dataclass_of(kind: type, prefix: str, fields: Any) -> Any:
    """Makes a dataclass from a mapping; `prefix`, such as 'ppo.', names its fields in errors."""
    if not isinstance(fields, (dict, config_dict.ConfigDict)):
        raise ConfigError(prefix[:-1], "must be a group of fields", repr(fields))
    hints = get_type_hints(kind)
    names = {field.name for field in dataclasses.fields(kind)} - {"sections"}
    values = {}
    for name, value in fields.items():
        if name not in names:
            # Those of `kind` may be settings of a user's own method, which `field_names` lacks.
            known = dict.fromkeys([*field_names(), *(f"{prefix}{own}" for own in names)])
            raise _no_such_field(f"{prefix}{name}", [*known])
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            values[name] = _dataclass_of(hint, f"{prefix}{name}.", value)  # pyright: ignore
        else:
            values[name] = _typed(prefix + name, hint, value)
    return kind(**values)


def _typed(name: str, hint: Any, value: Any) -> Any:
    """Returns `value`, and raises ConfigError if `value` does not have the type `hint`.

    If `hint` asks for it, an int becomes a float, and a list becomes a tuple.
    """
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
    kinds = parts or (hint,)  # the hint is `int | None` or `int`
    if type(value) is int and float in kinds:
        return float(value)
    # isinstance would let True pass for 1.
    if type(value) not in kinds:
        wanted = " or ".join("None" if kind is types.NoneType else kind.__name__ for kind in kinds)
        raise ConfigError(name, f"must be of type {wanted}", repr(value))
    return value
