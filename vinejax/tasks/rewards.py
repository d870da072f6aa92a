"""Reward functions by dotted path (`reward.functions`): called, weighted and added.

Functions written for TRL and for verl work as they are, because arguments go by name:

- A function with a parameter `completions` is called once for many responses, as TRL calls it, and
  gives a list of numbers. It may take `prompts`, `completions` (texts, not messages) and every
  column of the data, each as a list, and `**kwargs`.
- Any other function is called for one response and gives a number, or like verl's a dict with
  the number as 'score'. It may take `problem` (a `Problem`), `response`, `question`, `answer`,
  verl's `solution_str`, `ground_truth`, `data_source` and `extra_info`, and every column.
"""

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vinejax.core.errors import ConfigError, UserError
from vinejax.core.plugins import failure, find_function, source_of
from vinejax.core.settings import RewardConfig

if TYPE_CHECKING:
    from vinejax.core.types import Problem
else:  # vinejax.core.types imports jax, which takes seconds, and a command is checked without it
    Problem = Any

TASK = "task"  # stands for the task's own reward
TAKEN = ("mean", "std", "steps")  # metrics of every run, under reward/

Items = Sequence[tuple[Problem, str]]


class Reward(NamedTuple):
    """The reward of a response: the weighted sum, and the value of each function by its name."""

    total: float
    parts: dict[str, float] | None = None  # None: there is only the task's own reward


@dataclasses.dataclass(frozen=True)
class RewardFunction:
    """A function that `reward.functions` names; None stands for the task's own reward."""

    name: str
    path: str
    weight: float
    function: Callable[..., Any] | None

    @functools.cached_property  # asked for with every response
    def parameters(self) -> list[inspect.Parameter]:
        assert self.function is not None
        return list(inspect.signature(self.function).parameters.values())

    @property
    def is_batched(self) -> bool:
        """Whether the function takes many responses at once, as TRL's reward functions do."""
        return any(parameter.name == "completions" for parameter in self.parameters)

    def chosen(self, offered: dict[str, Any]) -> dict[str, Any]:
        """The arguments that the function takes. Raises UserError for one that is not offered."""
        named = [x for x in self.parameters if x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD)]
        for parameter in named:
            if parameter.default is parameter.empty and parameter.name not in offered:
                rule = f"takes {parameter.name!r}, which is none of {', '.join(offered)}"
                raise UserError(f"reward.functions: {self.path} {rule}")
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in self.parameters):
            return offered
        names = {parameter.name for parameter in named}
        return {name: value for name, value in offered.items() if name in names}

    def rewards(self, items: Items, task: str, prompt: Callable[[Problem], str]) -> list[Any]:
        """The function's result for each item. Raises UserError, with its line, if it fails."""
        if not self.is_batched:
            return [self._one(problem, response, task) for problem, response in items]
        rewards = self._called(self.chosen(batch_arguments(items, prompt)), "")
        if not isinstance(rewards, Sequence) or len(rewards) != len(items):
            count = len(rewards) if isinstance(rewards, Sequence) else repr(rewards)
            rule = f"gave {count} rewards for {len(items)} completions; needed is a list of as many"
            raise UserError(f"reward.functions: {self.path} {rule}")
        return list(rewards)

    def check(self, problem: Problem, task: str, prompt: Callable[[Problem], str]) -> None:
        """Raises UserError for a parameter that a problem of the run cannot give."""
        if self.is_batched:
            self.chosen(batch_arguments([(problem, "")], prompt))
        else:
            self.chosen(arguments(problem, "", task))

    def _one(self, problem: Problem, response: str, task: str) -> Any:
        reward = self._called(self.chosen(arguments(problem, response, task)), problem.id)
        if isinstance(reward, dict):
            if "score" not in reward:
                rule = f"gave {reward!r:.200}, a dict without 'score'"
                raise UserError(f"reward.functions: {self.path} {rule}")
            return reward["score"]
        return reward

    def _called(self, chosen: dict[str, Any], problem: str) -> Any:
        assert self.function is not None
        try:
            return self.function(**chosen)
        except UserError:
            raise
        except Exception as error:
            where = f", problem {problem}" if problem else ""
            reason = failure(error, source_of(self.path.rpartition(".")[0]))
            message = f"reward.functions: {self.path} failed{where}: {reason}"
            raise UserError(message) from error


def arguments(problem: Problem, response: str, task: str) -> dict[str, Any]:
    """The arguments that a function of one response may take, by name; the columns come last."""
    columns = problem.columns
    fixed = {
        "problem": problem,
        "response": response,
        "question": problem.question,
        "answer": problem.answer,
        "solution_str": response,
        "ground_truth": problem.answer,
        "data_source": columns.get("data_source", task),
        "extra_info": columns.get("extra_info") or {},
    }
    return fixed | {name: value for name, value in columns.items() if name not in fixed}


def batch_arguments(items: Items, prompt: Callable[[Problem], str]) -> dict[str, list[Any]]:
    """The arguments that a function of many responses may take, by name: a list each."""
    problems = [problem for problem, _ in items]
    fixed: dict[str, list[Any]] = {
        "prompts": [prompt(problem) for problem in problems],
        "completions": [response for _, response in items],
        "question": [problem.question for problem in problems],
        "answer": [problem.answer for problem in problems],
    }
    names = dict.fromkeys(name for problem in problems for name in problem.columns)
    columns = {
        name: [problem.columns.get(name) for problem in problems]
        for name in names
        if name not in fixed
    }
    return fixed | columns


def find_rewards(cfg: RewardConfig) -> list[RewardFunction]:
    """The functions with their weights, in order; none without `reward.functions`.

    Raises ConfigError for a path without a function, or whose module fails, with its line; for two
    functions of the same name, or the name of a metric that every run has; and if the numbers of
    weights and functions differ.
    """
    field = "reward.functions"
    if cfg.weights and len(cfg.weights) != len(cfg.functions):
        rule = f"must have a number for each of the {len(cfg.functions)} reward.functions"
        raise ConfigError("reward.weights", rule, repr(cfg.weights))
    functions: list[RewardFunction] = []
    weights = cfg.weights or (1.0,) * len(cfg.functions)
    for path, weight in zip(cfg.functions, weights, strict=True):
        name = path.rpartition(".")[2]
        if name in TAKEN or name in {function.name for function in functions}:
            rule = f"two metrics would be called reward/{name}; give the function another name"
            raise ConfigError(field, rule, repr(path))
        functions.append(RewardFunction(name, path, weight, _function(path)))
    return functions


def _function(path: str) -> Callable[..., Any] | None:
    if path == TASK:
        return None
    try:
        function = find_function(path)
    except Exception as error:
        reason = failure(error, source_of(path.rpartition(".")[0]))
        raise ConfigError("reward.functions", reason, repr(path)) from error
    if function is None or isinstance(function, types.ModuleType):
        rule = f"no such function; name one as 'my_rewards.accuracy', or {TASK!r}"
        raise ConfigError("reward.functions", rule, repr(path))
    return function


def weighted(functions: Sequence[RewardFunction], parts: Sequence[Sequence[float]]) -> list[Reward]:
    """The rewards whose parts are `parts[function][item]`."""
    return [
        Reward(
            sum(f.weight * x for f, x in zip(functions, item_parts, strict=True)),
            {f.name: x for f, x in zip(functions, item_parts, strict=True)},
        )
        for item_parts in zip(*parts, strict=True)
    ]
