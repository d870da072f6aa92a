"""The rules of step credit by name: built-in rules, and users' functions by dotted path."""

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vinejax.core.errors import ConfigError, nearest_hint
from vinejax.core.plugins import absence_of, function_of, place_of, result_of, shown
from vinejax.core.settings import Config
from vinejax.core.types import Episode
from vinejax.credit import allocation, bisection, mask, positions

# (Episode, token id -> text, ValuesConfig) -> response tokens before each state
POSITIONS = {
    "steps": positions.step_starts,
    "turns": positions.turn_starts,
    "after": positions.after_step_starts,
    "blank_lines": positions.blank_lines,
    "thinking_blank_lines": positions.thinking_blank_lines,
    "tokens": positions.every_n_tokens,
    "low_probability": positions.low_probability,
}
# (wave, Seen, ValuesConfig) -> number of new continuations at each state, or None to stop
ALLOCATIONS = {
    "uniform": allocation.uniform,
    "bisection": bisection.bisection,
}
# (Episode, CreditConfig) -> whether each response token is trained on
MASKS = {
    "none": mask.all_tokens,
    "low_probability": mask.low_probability,
    "top_entropy": mask.all_tokens,  # `mask.top_entropy` follows, over all episodes
}

# Fields that only some built-in rules read: (field, the field that names the rule, the rules)
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
    """Maps each configuration field that names a rule to the name that `cfg` gives.

    `cfg` must already have the defaults of its method.
    """
    return {
        "values.positions": cfg.values.positions,
        "values.allocation": cfg.values.allocation,
        "credit.mask": cfg.credit.mask,
    }


def find_rule(field: str, cfg: Config) -> Callable[..., Any]:
    """The function of the rule that the configuration field `field` names.

    A user's function, when called, raises ConfigError with its file and line if it fails or if its
    result does not have the form that `field` requires. `find_rule` itself raises the errors of
    `check_rule`.
    """
    name = chosen_rules(cfg)[field]
    users_function = check_rule(field, name)
    if users_function is None:
        return TABLES[field][name]
    return _guarded(field, name, users_function)


def check_rule(field: str, name: str) -> Callable[..., Any] | None:
    """The user's function with the path `name`; None if `name` is a built-in rule.

    Raises ConfigError if no rule has this name or path (the message may name a similar rule), if
    the function's module fails, or if the function cannot take the arguments for `field`.
    """
    built_in = TABLES[field]
    if name in built_in:
        return None
    message = f"must be {', '.join(map(repr, built_in))}, or a function's dotted path"
    if "." not in name:
        raise ConfigError(field, message + nearest_hint(name, built_in), repr(name))
    function = function_of(field, name)
    if function is None:
        raise ConfigError(field, f"{absence_of(name)}; it {message}", repr(name))
    arguments, _ = RESULTS[field]
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        message = f"{place_of(function)}: must take ({', '.join(arguments)}): {error}"
        raise ConfigError(field, message, repr(name)) from error
    return function


def _guarded(field: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The user's function, which now raises ConfigError if its result has a wrong form."""
    _, check_result = RESULTS[field]

    @functools.wraps(function)
    def guarded(*arguments: Any) -> Any:
        result = result_of(field, name, function, *arguments)
        try:
            return check_result(result, *arguments)
        except ValueError as error:
            message = f"{place_of(function)}: gave {shown(result)}; needed are {error}"
            raise ConfigError(field, message, repr(name)) from None

    return guarded


def _positions(result: Any, episode: Episode, *_: Any) -> list[int]:
    """The result of a positions rule as a list."""
    length = len(episode.response)
    numbers = _numbers(result, "iu")
    if numbers is None or any(a >= b for a, b in itertools.pairwise([-1, *numbers, length])):
        raise ValueError(
            f"strictly increasing whole numbers from 0, below the response's {length} tokens"
        )
    return numbers


def _counts(result: Any, wave: int, seen: allocation.Seen, *_: Any) -> list[int] | None:
    """The result of an allocation rule as a list."""
    if result is None:
        return None
    numbers, states = _numbers(result, "iu"), len(seen.returns)
    if numbers is None or len(numbers) != states or min(numbers, default=0) < 0:
        raise ValueError(f"a whole number of at least 0 for each of {states} states, or None")
    return numbers


def _mask(result: Any, episode: Episode, *_: Any) -> np.ndarray:
    """The result of a mask rule as bool[T]."""
    numbers, length = _numbers(result, "b"), len(episode.response)
    if numbers is None or len(numbers) != length:
        raise ValueError(f"a bool for each of the response's {length} tokens")
    return np.array(numbers, bool)


def _numbers(result: Any, kinds: str) -> list[Any] | None:
    """The numbers of a one-dimensional list or array; None for anything else.

    The dtype must be of one of the `kinds`, which are letters as in NumPy's `dtype.kind`.
    """
    try:
        array = np.asarray(result)
    except (TypeError, ValueError):  # lists of different lengths
        return None
    if array.ndim != 1 or (array.size and array.dtype.kind not in kinds):
        return None
    return array.tolist()


# By field: the arguments of its rules, and a function that checks the result of a user's rule. If
# the form is wrong, this function raises ValueError, whose message is what the result must be.
RESULTS: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "values.positions": (("episode", "text_of", "values"), _positions),
    "values.allocation": (("wave", "seen", "values"), _counts),
    "credit.mask": (("episode", "credit"), _mask),
}


def check_rules(cfg: Config, has_continuations: bool) -> None:
    """Raises ConfigError for unknown rules and for rules that do not fit together.

    `cfg` must already have the defaults of its method. `has_continuations` says whether the method
    samples values; without samples, a discount fits all rules.
    """
    rules, values = chosen_rules(cfg), cfg.values
    for field, name in rules.items():
        check_rule(field, name)
    if values.backup and not values.reuse:
        raise ConfigError("values.backup", "needs values.reuse = True", repr(values.backup))
    if values.reuse and values.budget != "left":
        message = (
            "needs values.budget = 'left': all samples that pass a state must have one horizon"
        )
        raise ConfigError("values.reuse", message, repr(values.reuse))
    _check_roles(cfg, rules)
    undivided = (
        rules["values.positions"] == "steps" and values.merge == 1 and values.num_states is None
    )
    one_to_one = undivided and rules["values.allocation"] == "uniform" and not values.backup
    if cfg.ppo.gamma != 1 and has_continuations and not one_to_one:
        message = (
            "must be 1 unless every step of the task has a value of its own: values.positions ="
            " 'steps', values.allocation = 'uniform', no merge, num_states or backup"
        )
        raise ConfigError("ppo.gamma", message, repr(cfg.ppo.gamma))


def _check_roles(cfg: Config, rules: Mapping[str, str]) -> None:
    """Raises ConfigError if bisection is used with settings of credit by role (`rl/by_role.py`).

    These settings average values or mix them with learned values. Bisection interpolates values
    from later returns, so its values must not be averaged.
    """
    averages = {
        f"credit.{name}": getattr(cfg.credit, name) for name in ("lambda_", "baseline_lambda")
    }
    for name, value in (averages | {"values.prior": cfg.values.prior}).items():
        if value and rules["values.allocation"] == "bisection":
            message = (
                "does not go with values.allocation = 'bisection', whose values look ahead;"
                " leave it out"
            )
            raise ConfigError(name, message, repr(value))
