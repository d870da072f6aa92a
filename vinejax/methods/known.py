"""Methods by name: those of this folder, those that accessories contribute, or a user's own."""

import dataclasses
from types import ModuleType

from vinejax.core.accessories import contributed, contributed_module
from vinejax.core.errors import ConfigError, nearest_hint
from vinejax.core.plugins import failure, find_module, source_of
from vinejax.core.sections import MethodSettings
from vinejax.core.settings import Config
from vinejax.methods import (
    dapo,
    dpo_positive,
    dr_grpo,
    grpo,
    ppo,
    ppo_probe,
    reinforce_pp,
    restem,
    rloo,
    sft,
    spo_chain,
    vineppo,
)
from vinejax.methods.base import Method

MODULES: dict[str, ModuleType] = {
    "vineppo": vineppo,
    "ppo": ppo,
    "ppo_probe": ppo_probe,
    "spo_chain": spo_chain,
    "grpo": grpo,
    "rloo": rloo,
    "dr_grpo": dr_grpo,
    "dapo": dapo,
    "reinforce++": reinforce_pp,
    "restem": restem,
    "dpo_positive": dpo_positive,
    "sft": sft,
}


def method_names() -> list[str]:
    """The names of all methods: the package's own, then the contributed ones."""
    return [*MODULES, *contributed("METHODS")]


def method_module(name: str) -> ModuleType | None:
    """The module of a method of ours or of a contributed one; None for any other name."""
    return MODULES.get(name) or contributed_module("METHODS", name)


def all_methods() -> dict[str, Method]:
    """Every method by name, for documents and help; imports the contributed ones."""
    modules = {name: method_module(name) for name in method_names()}
    return {name: module.METHOD for name, module in modules.items() if module}


def find_method(name: str) -> Method:
    """The method that the field `method` names, or METHOD of a user's module.

    Raises ConfigError, naming the nearest name, for anything else, and with file and line if the
    user's module fails.
    """
    if module := method_module(name):
        return module.METHOD
    known = " or ".join(map(repr, method_names()))
    rule = f"must be {known}, or the dotted path of a module with a METHOD"
    if "." not in name:
        raise ConfigError("method", rule + nearest_hint(name, method_names()), repr(name))
    try:
        module = find_module(name)
    except Exception as error:
        raise ConfigError("method", failure(error, source_of(name)), repr(name)) from error
    if module is None:
        raise ConfigError("method", f"no such module; it {rule}", repr(name))
    method = getattr(module, "METHOD", None)
    if not isinstance(method, Method):
        raise ConfigError(
            "method", "the module has no METHOD, a vinejax.methods.base.Method", repr(name)
        )
    _check_settings(name, method.settings)
    return method


def _check_settings(name: str, kind: type[MethodSettings]) -> None:
    """Refuses settings of a user's method that a configuration could not name or make."""
    taken = {field.name for field in dataclasses.fields(Config)} | set(contributed("SECTIONS"))
    taken |= {module.METHOD.settings.section for module in MODULES.values()} - {""}
    without = [
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    rules = {
        f"{kind.__name__}.section = {kind.section!r} is a section of ours": kind.section in taken,
        f"{kind.__name__} has fields and no section": bool(dataclasses.fields(kind))
        and not kind.section,
        f"{kind.__name__}.{''.join(without[:1])} has no default": bool(without),
    }
    for rule, holds in rules.items():
        if holds:
            raise ConfigError("method", rule, repr(name))
