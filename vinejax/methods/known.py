"""Finding methods by name: of this folder, contributed by accessories, or a user's own."""

import dataclasses

from vinejax.core.accessories import contributed, contributed_module
from vinejax.core.errors import ConfigError, nearest_hint
from vinejax.core.plugins import SEARCHED, failure, find_module, is_importable, source_of
from vinejax.core.sections import MethodSettings
from vinejax.core.settings import Config
from vinejax.methods import (
    baselines,
    dpo_positive,
    ppo,
    ppo_probe,
    restem,
    sft,
    spo_chain,
    vineppo,
)
from vinejax.methods.base import Method

METHODS: dict[str, Method] = {
    "vineppo": vineppo.METHOD,
    "ppo": ppo.METHOD,
    "ppo_probe": ppo_probe.METHOD,
    "spo_chain": spo_chain.METHOD,
    "grpo": baselines.GRPO,
    "rloo": baselines.RLOO,
    "dr_grpo": baselines.DR_GRPO,
    "dapo": baselines.DAPO,
    "reinforce++": baselines.REINFORCE_PP,
    "restem": restem.METHOD,
    "dpo_positive": dpo_positive.METHOD,
    "sft": sft.METHOD,
}


def method_names() -> list[str]:
    """The names of all methods, first those of the core and then the contributed methods."""
    return [*METHODS, *contributed("METHODS")]


def known_method(name: str) -> Method | None:
    """The method of the core, or the contributed one, with this name; None for any other name."""
    if name in METHODS:
        return METHODS[name]
    module = contributed_module("METHODS", name)
    return module.METHOD if module else None


def all_methods() -> dict[str, Method]:
    """Every core and contributed method by name. Imports the modules of contributed methods."""
    found = {name: known_method(name) for name in method_names()}
    return {name: method for name, method in found.items() if method}


def find_method(name: str) -> Method:
    """The method with this name, or the METHOD of a user's module with this name or dotted path.

    Raises ConfigError for an unknown name, with the most similar known name, and for a user's
    module that fails, with its file and line.
    """
    if method := known_method(name):
        return method
    known = " or ".join(map(repr, method_names()))
    expected = f"must be {known}, or the name or dotted path of a module with a METHOD"
    if "." not in name and not is_importable(name):
        raise ConfigError("method", expected + nearest_hint(name, method_names()), repr(name))
    try:
        module = find_module(name)
    except Exception as error:
        raise ConfigError("method", failure(error, source_of(name)), repr(name)) from error
    if module is None:
        message = f"no such module {SEARCHED}; it {expected}"
        raise ConfigError("method", message, repr(name))
    method = getattr(module, "METHOD", None)
    if not isinstance(method, Method):
        message = "the module has no METHOD, a vinejax.methods.base.Method"
        hint = "" if "." in name else nearest_hint(name, method_names())
        raise ConfigError("method", f"{source_of(name) or name}: {message}{hint}", repr(name))
    _check_settings(name, method.settings)
    return dataclasses.replace(method, is_users=True)


def _check_settings(name: str, kind: type[MethodSettings]) -> None:
    """Raises ConfigError if no configuration can hold the settings `kind` of method `name`."""
    taken = {field.name for field in dataclasses.fields(Config)} | set(contributed("SECTIONS"))
    taken |= {method.settings.section for method in METHODS.values()} - {""}
    without = [
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    faults = {
        f"{kind.__name__}.section = {kind.section!r} is a section of ours": kind.section in taken,
        f"{kind.__name__} has fields and no section": bool(dataclasses.fields(kind))
        and not kind.section,
        f"{kind.__name__}.{''.join(without[:1])} has no default": bool(without),
    }
    for fault, is_there in faults.items():
        if is_there:
            raise ConfigError("method", fault, repr(name))
