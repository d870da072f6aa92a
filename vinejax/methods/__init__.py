"""Every method by name: one module each, with its equation, its source and its record `METHOD`.

`base.py` says what a method is; `vineppo.py` is the one that the package is named for.
"""

import dataclasses
from types import ModuleType

from vinejax.contrib.methods import (
    aepo,
    arpo,
    asymre,
    brpo,
    d3s,
    direct,
    drpo,
    gigpo,
    hapo,
    inpo,
    opmd,
    p3o,
    pairwise,
    poad,
    salt,
    scaf_grpo,
    single_stream,
    spo_tree,
    tempo,
    tree_grpo,
    treepo,
    treerl,
    trpa,
    turn_credit,
    unlikely,
)
from vinejax.core.errors import ConfigError, nearest_hint
from vinejax.core.plugins import failure, find_module, source_of
from vinejax.core.settings import Config, MethodSettings
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
    "poad": poad,
    "ppo_probe": ppo_probe,
    "spo_chain": spo_chain,
    "direct": direct,
    "spo_tree": spo_tree,
    "treepo": treepo,
    "treerl": treerl,
    "tree_grpo": tree_grpo,
    "tempo": tempo,
    "grpo": grpo,
    "gigpo": gigpo,
    "turn_credit": turn_credit,
    "salt": salt,
    "arpo": arpo,
    "aepo": aepo,
    "rloo": rloo,
    "dr_grpo": dr_grpo,
    "dapo": dapo,
    "scaf_grpo": scaf_grpo,
    "reinforce++": reinforce_pp,
    "unlikely": unlikely,
    "drpo": drpo,
    "trpa": trpa,
    "p3o": p3o,
    "hapo": hapo,
    "d3s": d3s,
    "opmd": opmd,
    "asymre": asymre,
    "single_stream": single_stream,
    "brpo": brpo,
    "pairwise": pairwise,
    "restem": restem,
    "dpo_positive": dpo_positive,
    "inpo": inpo,
    "sft": sft,
}
METHODS: dict[str, Method] = {name: module.METHOD for name, module in MODULES.items()}


def find_method(name: str) -> Method:
    """The method that the field `method` names: in METHODS, or METHOD of a user's module.

    Raises ConfigError, naming the nearest name in METHODS, for anything else, and with file and
    line if the user's module fails.
    """
    if name in METHODS:
        return METHODS[name]
    known = " or ".join(map(repr, METHODS))
    rule = f"must be {known}, or the dotted path of a module with a METHOD"
    if "." not in name:
        raise ConfigError("method", rule + nearest_hint(name, METHODS), repr(name))
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
    taken = {field.name for field in dataclasses.fields(Config)}
    taken |= {record.settings.section for record in METHODS.values()} - {""}
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
