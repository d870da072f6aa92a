"""Config files to settings.

A config file is plain Python: `get_config()` starts from `default()`, a ConfigDict of
`ml_collections` with every field of `settings.py`, and assigns what differs. `from_dict` turns the
result into frozen dataclasses.
"""

import dataclasses
import difflib
import runpy
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from ml_collections import config_dict

from vinejax import settings
from vinejax.errors import ConfigError
from vinejax.methods import METHODS
from vinejax.settings import Config

OWNED = {section for method in METHODS.values() for section in method.sections}


def __getattr__(name: str) -> Any:
    """The settings' names, which tasks of users' own import from here: `config.DataConfig`."""
    return getattr(settings, name)


class Fields(config_dict.ConfigDict):
    """The fields of `Config` as a ConfigDict, for config files and the command line to change."""

    # Attributes come before keys, and this one would be the method that all mappings have.
    @property
    def values(self) -> Any:
        return self["values"]

    # For type checkers, which could not know the fields of a field.
    def __getattr__(self, attribute: str) -> Any:
        return super().__getattr__(attribute)


class Setting(config_dict.FieldReference):
    """The value of a field, and whether it was set since `default()` made it."""

    def __init__(self, value: Any, kind: type):
        super().__init__(value, kind)
        self.is_set = False

    def set(self, value: Any, type_safe: bool = True) -> None:
        super().set(value, type_safe)
        self.is_set = True

    def __setstate__(self, state: dict[str, Any]) -> None:  # of a copy
        super().__setstate__(state)
        self.is_set = state["is_set"]


def default() -> Fields:
    """Every field at its default, for a config file to change. Optional integers accept None."""

    def tree(section: Any, is_owned: bool = False) -> dict[str, Any]:
        hints = get_type_hints(type(section))
        fields = {}
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            if dataclasses.is_dataclass(value):
                value = tree(value, field.name in OWNED)
            elif isinstance(value, dict):  # rows that the config file adds
                value = config_dict.ConfigDict(value, type_safe=False)
            elif value is None:  # a bare None would accept any type later
                value = Setting(None, get_args(hints[field.name])[0])
            elif is_owned:  # for `given`
                value = Setting(value, type(value))
            fields[field.name] = value
        return fields

    return Fields(tree(Config()))


def given(fields: Fields) -> set[str]:
    """Names of the fields of methods' own sections that were set, be it to their default.

    A section that was replaced by a fresh one, `default().values`, has none.
    """
    return {
        f"{section}.{name}"
        for section in OWNED.intersection(fields)
        for name, value in getattr(fields, section).items(preserve_field_references=True)
        if isinstance(value, Setting) and value.is_set
    }


def from_file(file: str, neighbour: str) -> Fields:
    """The configuration of the config file `neighbour`, seen from the folder of `file`, to change.

    A config file that differs from another in a few fields calls it with its own `__file__`.
    """
    return runpy.run_path(str(Path(file).parent / neighbour))["get_config"]()


def from_dict(fields: config_dict.ConfigDict | dict[str, Any]) -> Config:
    """The frozen form of a config file's result. Fields that are left out keep their default.

    Raises:
      ConfigError: a field is unknown (the message names the nearest one) or of the wrong type.
    """
    return _section(Config, "", fields)


def check_name(name: str) -> None:
    """Raises ConfigError unless `name` is the dotted name of a field, such as `ppo.clip`."""
    if name not in _names(Config):
        raise _unknown(name)


def _unknown(name: str) -> ConfigError:
    if any(known.startswith(name + ".") for known in _names(Config)):
        return ConfigError(name, f"is a group of fields; set one of them, such as {_nearest(name)}")
    return ConfigError(name, f"no such field; the nearest one is {_nearest(name)}")


def _names(section: type, prefix: str = "") -> Iterator[str]:
    for name, hint in get_type_hints(section).items():
        if dataclasses.is_dataclass(hint):
            yield from _names(hint, f"{prefix}{name}.")  # pyright: ignore[reportArgumentType]
        else:
            yield prefix + name


def _nearest(name: str) -> str:
    """The valid name most like `name`; `clip` means `ppo.clip`, so the last part counts twice."""
    leaf = name.rpartition(".")[2]

    def likeness(known: str) -> float:
        whole = difflib.SequenceMatcher(None, name, known).ratio()
        return whole + difflib.SequenceMatcher(None, leaf, known.rpartition(".")[2]).ratio()

    return max(_names(Config), key=likeness)


def _section(kind: type, prefix: str, fields: Any) -> Any:
    """One dataclass from a mapping; `prefix` is the dotted name of the section with its dot."""
    if not isinstance(fields, (dict, config_dict.ConfigDict)):
        raise ConfigError(prefix[:-1] or "config", "must be a group of fields", repr(fields))
    hints = get_type_hints(kind)
    values = {}
    for name, value in fields.items():
        if name not in hints:
            raise _unknown(f"{prefix}{name}")
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            values[name] = _section(hint, f"{prefix}{name}.", value)  # pyright: ignore
        else:
            values[name] = _value(prefix + name, hint, value)
    return kind(**values)


def _value(name: str, hint: Any, value: Any) -> Any:
    """`value` as the declared type. Nothing converts but int to float and list to tuple."""
    if get_origin(hint) is dict:
        if not isinstance(value, (dict, config_dict.ConfigDict)):
            raise ConfigError(name, "must be a dict of groups of fields", repr(value))
        row = get_args(hint)[1]
        return {key: _section(row, f"{name}.{key}.", fields) for key, fields in value.items()}
    if get_origin(hint) is tuple:
        if not isinstance(value, (tuple, list)):
            raise ConfigError(name, "must be a tuple of strings, such as ('###',)", repr(value))
        return tuple(_value(name, get_args(hint)[0], item) for item in value)
    kinds = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if type(value) is int and float in kinds:
        return float(value)
    # isinstance would let True pass for 1.
    if type(value) not in kinds:
        wanted = " or ".join("None" if kind is types.NoneType else kind.__name__ for kind in kinds)
        raise ConfigError(name, f"must be of type {wanted}", repr(value))
    return value
