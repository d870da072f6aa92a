"""The rules of step credit by name: ours, or a function of a user's by its dotted path."""

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vinejax.core.errors import ConfigError, nearest_hint
from vinejax.core.plugins import absence_of, function_of, place_of, result_of
from vinejax.core.settings import Config
from vinejax.core.types import Episode
from vinejax.credit import allocation, bisection, mask, positions

# Episode, token id -> text, ValuesConfig -> response tokens before each state.
POSITIONS = {
    "steps": positions.step_starts,
    "turns": positions.turn_starts,
    "after": positions.after_step_starts,
    "blank_lines": positions.blank_lines,
    "thinking_blank_lines": positions.thinking_blank_lines,
    "tokens": positions.every_n_tokens,
    "low_probability": positions.low_probability,
}
# Wave, Seen, ValuesConfig -> new continuations at each state; None: no more are wanted.
ALLOCATIONS = {
    "uniform": allocation.uniform,
    "bisection": bisection.bisection,
}
# Episode, CreditConfig -> whether each response token is trained on.
MASKS = {
    "none": mask.all_tokens,
    "low_probability": mask.low_probability,
    "top_entropy": mask.all_tokens,  # then `mask.top_entropy` over all episodes
}

# The fields that only some of our rules read: (field, the field that names the rule, the rules).
READ_BY = (
    ("values.every", "values.positions", ("tokens", "low_probability")),
    ("values.below", "values.positions", ("low_probability",)),
    ("values.threshold", "values.allocation", ("bisection",)),
    ("credit.mask_above", "credit.mask", ("low_probability",)),
    ("credit.mask_share", "credit.mask", ("top_entropy",)),
)


TABLES: dict[str, Mapping[str, Callable[..., Any]]] = {
    "values.positions": POSITIONS,
    "values.allocation": ALLOCATIONS,
    "credit.mask": MASKS,
}


def chosen_rules(cfg: Config) -> dict[str, str]:
    """{field: name of its rule}, in a configuration that a method was applied to."""
    return {
        "values.positions": cfg.values.positions,
        "values.allocation": cfg.values.allocation,
        "credit.mask": cfg.credit.mask,
    }


def find_rule(field: str, cfg: Config) -> Callable[..., Any]:
    """The function of the rule that `field`, one of `TABLES`, names.

    One of a user's own raises ConfigError, with its file and line, where it fails or gives what is
    none of `RESULTS`. Raises as `check_rule` does.
    """
    name = chosen_rules(cfg)[field]
    own = check_rule(field, name)
    return TABLES[field][name] if own is None else _guarded(field, name, own)


def check_rule(field: str, name: str) -> Callable[..., Any] | None:
    """The function of a user's own that `name` is the path of; None for the name of one of ours.

    Raises ConfigError where no rule has this name or path, naming the nearest of ours; where its
    module fails; and where it cannot take the arguments.
    """
    ours = TABLES[field]
    if name in ours:
        return None
    known = ", ".join(map(repr, ours))
    rule = f"must be {known}, or a function's dotted path"
    if "." not in name:
        raise ConfigError(field, rule + nearest_hint(name, ours), repr(name))
    function = function_of(field, name)
    if function is None:
        raise ConfigError(field, f"{absence_of(name)}; it {rule}", repr(name))
    arguments, _ = RESULTS[field]
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        needed = f"must take ({', '.join(arguments)}): {error}"
        raise ConfigError(field, f"{place_of(function)}: {needed}", repr(name)) from error
    return function


def _guarded(field: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    _, checked = RESULTS[field]

    @functools.wraps(function)
    def guarded(*arguments: Any) -> Any:
        found = result_of(field, name, function, *arguments)
        try:
            return checked(found, *arguments)
        except ValueError as error:
            rule = f"{place_of(function)}: gave {found!r:.200}; needed are {error}"
            raise ConfigError(field, rule, repr(name)) from None

    return guarded


def _positions(found: Any, episode: Episode, *_: Any) -> list[int]:
    """`found` as a positions rule gives it; ValueError says what is needed."""
    length = len(episode.response)
    whole = _numbers(found, "iu")
    if whole is None or any(a >= b for a, b in itertools.pairwise([-1, *whole, length])):
        raise ValueError(f"rising whole numbers from 0, below the response's {length} tokens")
    return whole


def _counts(found: Any, wave: int, seen: allocation.Seen, *_: Any) -> list[int] | None:
    """`found` as an allocation rule gives it; ValueError says what is needed."""
    whole, states = None if found is None else _numbers(found, "iu"), len(seen.returns)
    if found is not None and (whole is None or len(whole) != states or min(whole, default=0) < 0):
        raise ValueError(f"a whole number of at least 0 for each of {states} states, or None")
    return whole


def _marks(found: Any, episode: Episode, *_: Any) -> np.ndarray:
    """`found` as a mask rule gives it; ValueError says what is needed."""
    marks, length = _numbers(found, "b"), len(episode.response)
    if marks is None or len(marks) != length:
        raise ValueError(f"a bool for each of the response's {length} tokens")
    return np.array(marks, bool)


def _numbers(found: Any, kinds: str) -> list[Any] | None:
    """The numbers of a list or an array of one axis, of NumPy's `kinds`; None for all else."""
    try:
        array = np.asarray(found)
    except (TypeError, ValueError):  # lists of different lengths
        return None
    if array.ndim != 1 or (array.size and array.dtype.kind not in kinds):
        return None
    return array.tolist()


# By field: the arguments of its rules, and a function that checks what one of a user's own gave.
RESULTS: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "values.positions": (("episode", "text_of", "values"), _positions),
    "values.allocation": (("wave", "seen", "values"), _counts),
    "credit.mask": (("episode", "credit"), _marks),
}


def check_rules(cfg: Config) -> None:
    """Raises ConfigError for unknown rules and for rules that do not fit together.

    `cfg` is a configuration that its method was applied to.
    """
    rules, values = chosen_rules(cfg), cfg.values
    for field, name in rules.items():
        check_rule(field, name)
    if values.backup and not values.reuse:
        raise ConfigError("values.backup", "needs values.reuse = True", repr(values.backup))
    if values.reuse and values.budget != "left":
        rule = "needs values.budget = 'left': what passes through a state must have one horizon"
        raise ConfigError("values.reuse", rule, repr(values.reuse))
    _check_roles(cfg, rules)
    undivided = (
        rules["values.positions"] == "steps" and values.merge == 1 and values.num_states is None
    )
    one_to_one = undivided and rules["values.allocation"] != "bisection" and not values.backup
    if cfg.ppo.gamma != 1 and not one_to_one:
        rule = (
            "must be 1 unless every step of the task has a value of its own: values.positions ="
            " 'steps', no merge, num_states, bisection or backup"
        )
        raise ConfigError("ppo.gamma", rule, repr(cfg.ppo.gamma))


def _check_roles(cfg: Config, rules: Mapping[str, str]) -> None:
    """Refuses averages of values that bisection has drawn a line between: it has looked ahead."""
    averages = {
        f"credit.{name}": getattr(cfg.credit, name) for name in ("lambda_", "baseline_lambda")
    }
    for name, value in (averages | {"values.prior": cfg.values.prior}).items():
        if value and rules["values.allocation"] == "bisection":
            rule = "cannot be with values.allocation = 'bisection', whose values look ahead"
            raise ConfigError(name, f"{rule}; leave it out", repr(value))
