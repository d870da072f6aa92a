"""Reward functions by dotted path (`reward.functions`): called, weighted and added.

Functions written for TRL and for verl work unchanged, because arguments are passed by name:

- A function with a parameter `completions`, `completion_ids` or `prompts` is called once for many
  responses, as in TRL, and so is a function of `**kwargs` alone, unless it uses names of the other
  kind (`reward_forms.py`). It returns a number per response, in a list, an array or a tensor. It
  may take `prompts` and `completions`, `completion_ids`, `question`, `answer`, `ground_truth` and
  every column of the data, all as lists, and `trainer_state`, `log_metric` and `log_extra`. Prompts
  and completions are lists of messages if the data's questions are messages, and else `Chat`.
- Any other function is called for one response. It returns a number, or like verl's functions a
  dict with the number as 'score'. It may take `problem` (a `Problem`), `response`, `question`,
  `answer`, verl's `solution_str`, `ground_truth`, `data_source` and `extra_info`, and every column.

Both kinds may be async, and may return None for a response that they do not judge. `ground_truth`
is the answer without its solution. In TRL's lists `answer` and `ground_truth` are numbers if their
columns have numbers.
"""

import asyncio
import atexit
import contextlib
import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vinejax.core.errors import ConfigError, UserError
from vinejax.core.plugins import (
    absence_of,
    awaited_in,
    failure,
    file_of,
    find_module,
    finite_number,
    function_of,
    is_importable,
    listed,
    other_functions,
    own_functions,
    place_of,
    shown,
    source_of,
)
from vinejax.core.settings import RewardConfig
from vinejax.tasks.answers import bare_answer, written
from vinejax.tasks.reward_forms import (
    Chat,
    Problem,
    forwarded_names,
    is_batched,
    is_conversation,
    messages_of,
    parameters_of,
)

TASK = "task"  # name of the task's own reward
NAMES_IN_FILES = ("reward", "compute_score")  # usual names of the function of a file
MOST_NAMES = 5  # names of functions that an error message lists
RESERVED = ("mean", "std", "steps")  # names of every run's metrics under reward/

Items = Sequence[tuple[Problem, str]]


class Reward(NamedTuple):
    """The reward of a response: the weighted sum, and the value of each function by its name."""

    total: float
    # Values of the functions that judged the response; None: only the task's own reward
    parts: dict[str, float] | None = None


@dataclasses.dataclass
class TrainerState:
    """The supported fields of TRL's `trainer_state`."""

    global_step: int = 0  # number of finished iterations
    max_steps: int = 0  # number of iterations of the run


@dataclasses.dataclass
class RewardCall:
    """What a function of many responses receives in one call besides the problems and texts.

    `log_metric(name, value)` logs the metric reward/<function>/<name>, the mean of its values.
    `log_extra` does nothing, because episodes have no extra columns.
    """

    # [responses] token ids; None: the responses were not sampled, so their bytes stand for ids
    ids: Sequence[list[int]] | None = None
    state: TrainerState = dataclasses.field(default_factory=TrainerState)
    logged: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    def arguments(self, texts: Sequence[str]) -> dict[str, Any]:
        """The arguments of this call by name; `texts` are the texts of the responses."""
        return {
            "completion_ids": self.ids or [list(text.encode()) for text in texts],
            "trainer_state": self.state,
            "log_metric": self._log,
            "log_extra": lambda column, values: None,
        }

    def _log(self, name: str, value: Any) -> None:
        """Adds a value to the metric `name`. Raises ValueError if it is not a finite number."""
        if (number := finite_number(value)) is None:
            raise ValueError(f"log_metric({name!r}, {shown(value)}): a metric is a finite number")
        self.logged.setdefault(name, []).append(number)


@dataclasses.dataclass(frozen=True)
class RewardFunction:
    """A reward function of the user's, or the task's own reward."""

    name: str
    path: str
    weight: float
    function: Callable[..., Any] | None  # None: the task's own reward
    field: str = "reward.functions"  # setting that names the function

    @functools.cached_property  # read for every response
    def parameters(self) -> list[inspect.Parameter]:
        assert self.function is not None
        return parameters_of(self.function)

    @functools.cached_property
    def is_batched(self) -> bool:
        """Whether the function takes many responses at once, as TRL's reward functions do."""
        assert self.function is not None
        return is_batched(self.function)

    @functools.cached_property
    def forwarded(self) -> set[str] | None:
        """The arguments that the function passes on, if it wraps another one of one response."""
        assert self.function is not None
        return None if self.is_batched else forwarded_names(self.function)

    def chosen(self, offered: dict[str, Any]) -> dict[str, Any]:
        """The arguments in `offered` that the function takes.

        Raises UserError if the function requires an argument that is not in `offered`.
        """
        named = [x for x in self.parameters if x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD)]
        for parameter in named:
            if parameter.default is parameter.empty and parameter.name not in offered:
                message = f"takes {parameter.name!r}, which is none of {', '.join(offered)}"
                raise self.misfit(message)
        names = {parameter.name for parameter in named}
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in self.parameters):
            names = self.forwarded or set(offered)
        return {name: value for name, value in offered.items() if name in names}

    def rewards(
        self,
        items: Items,
        task: str,
        prompt: Callable[[Problem], str],
        call: RewardCall | None = None,
        names: Sequence[str] = (),
    ) -> list[float | None]:
        """The function's reward of each item; None for an item that it does not judge.

        `names` are the names of the items in error messages, by default those of their problems.
        Raises UserError, with file and line, if the function fails or does not return a finite
        number or None for each item.
        """
        place = f" on {names[0]} to {names[-1]}" if names else ""
        names = names or [f"problem {problem.id}" for problem, _ in items]
        if not self.is_batched:
            chosen = [self.chosen(arguments(p, text, task)) for p, text in items]
            places = [f", {name}" for name in names]
            scores = [self._score(result) for result in self._results(chosen, places)]
            return self._finite(scores, names)
        chosen = self.chosen(batch_arguments(items, prompt, call or RewardCall()))
        (result,) = self._results([chosen], [place])
        with self._errors_located(place):  # a generator runs only now
            result = list(result) if isinstance(result, Iterator) else result
        rewards = listed(result)
        if rewards is None or len(rewards) != len(items):
            count = f"{shown(result)} as" if rewards is None else len(rewards)
            message = f"gave {count} rewards for {len(items)} completions"
            raise self.misfit(f"{message}{place}; needed is a list of as many")
        return self._finite(rewards, names)

    def _finite(self, rewards: list[Any], names: Sequence[str]) -> list[float | None]:
        """The rewards as floats or None. Raises UserError, naming the item, for any other value."""
        numbers = [None if x is None else finite_number(x) for x in rewards]
        for reward, number, name in zip(rewards, numbers, names, strict=True):
            if reward is not None and number is None:
                message = f"gave {shown(reward)} for {name}; needed is a finite number, or None"
                raise self.misfit(message)
        return numbers

    def check(self, problem: Problem, task: str, prompt: Callable[[Problem], str]) -> None:
        """Raises UserError if the function requires an argument that the problem does not give."""
        if self.is_batched:
            self.chosen(batch_arguments([(problem, "")], prompt, RewardCall()))
        else:
            self.chosen(arguments(problem, "", task))

    def _results(self, chosen: list[dict[str, Any]], places: list[str]) -> list[Any]:
        """The function's result for each set of arguments. Async calls run at the same time.

        `places` has, for each call, the words by which error messages name its items, or ''.
        """
        assert self.function is not None
        results = []
        for named, place in zip(chosen, places, strict=True):
            with self._errors_located(place):
                results.append(self.function(**named))
        if not any(map(inspect.isawaitable, results)):
            return results

        async def awaited(result: Any, place: str) -> Any:
            with self._errors_located(place):
                return await result if inspect.isawaitable(result) else result

        async def gathered() -> list[Any]:
            pending = map(awaited, results, places)
            return await asyncio.gather(*pending, return_exceptions=True)

        results = awaited_in(_event_loop(), gathered())
        if errors := [result for result in results if isinstance(result, BaseException)]:
            raise errors[0]
        return results

    def _score(self, result: Any) -> Any:
        if not isinstance(result, dict):
            return result
        if "score" not in result:
            raise self.misfit(f"gave {shown(result)}, a dict without 'score'")
        return result["score"]

    @contextlib.contextmanager
    def _errors_located(self, place: str) -> Iterator[None]:
        """Turns an exception of the function into a UserError with its file and line."""
        assert self.function is not None
        try:
            yield
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # `exit()` in code that it runs
            named, defined = source_of(module_name(self.path)), file_of(self.function)
            reason = failure(error, named, defined)
            raise self.error(f"failed{place}: {reason}") from error

    def misfit(self, message: str) -> UserError:
        """The error to raise for a fault in the function's signature or result.

        The error names the file and line where the function is defined.
        """
        assert self.function is not None
        return self.error(f"{message} ({place_of(self.function)})")

    def error(self, message: str) -> UserError:
        """The error to raise, which names the setting and the path of the function."""
        return UserError(f"{self.field}: {self.path} {message}")


def module_name(path: str) -> str:
    """The module in a function's path; a path without dots is the module itself."""
    file = path.removesuffix(".py")
    return file.rpartition(".")[0] or file


@functools.cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """The event loop in which all async reward functions run.

    As the loop stays the same, the functions can reuse a client that belongs to an event loop.
    """
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


def arguments(problem: Problem, response: str, task: str) -> dict[str, Any]:
    """The arguments for a function of one response, by name.

    A column of the data is left out if another argument has its name.
    """
    columns = problem.columns
    fixed = {
        "problem": problem,
        "response": response,
        "question": problem.question,
        "answer": problem.answer,
        "solution_str": response,
        "ground_truth": bare_answer(problem.answer),
        "data_source": columns.get("data_source") or task,
        "extra_info": columns.get("extra_info") or {},
    }
    return fixed | {name: value for name, value in columns.items() if name not in fixed}


def batch_arguments(
    items: Items, prompt: Callable[[Problem], str], call: RewardCall
) -> dict[str, Any]:
    """The arguments for a function of many responses, by name.

    A column of the data is left out if another argument has its name.
    """
    problems = [problem for problem, _ in items]
    texts = [response for _, response in items]
    forms = [messages_of if is_conversation(problem) else Chat.of for problem in problems]
    prompts = [(prompt(problem), "user", problem.context) for problem in problems]
    fixed = {
        "prompts": [form(*prompt) for form, prompt in zip(forms, prompts, strict=True)],
        "completions": [form(x, "assistant") for form, x in zip(forms, texts, strict=True)],
        "question": [problem.question for problem in problems],
        "answer": [_as_in_column(p, "answer", p.answer) for p in problems],
        "ground_truth": [_as_in_column(p, "ground_truth", bare_answer(p.answer)) for p in problems],
        **call.arguments(texts),
    }
    names = dict.fromkeys(name for problem in problems for name in problem.columns)
    columns = {
        name: [problem.columns.get(name) for problem in problems]
        for name in names
        if name not in fixed
    }
    return fixed | columns


def _as_in_column(problem: Problem, name: str, text: str) -> str | int | float:
    """The number in column `name`, as TRL passes it, if `text` is that number; else `text`."""
    value = problem.columns.get(name)
    return value if isinstance(value, int | float) and written(value) == text else text


def find_rewards(cfg: RewardConfig) -> list[RewardFunction]:
    """The functions of `reward.functions` with their weights, in order.

    Raises ConfigError if a path has no function, and if a module fails, with the line at fault.
    Raises it as well if two functions have the same name, if a function has the name of a metric
    that every run has, and if the numbers of weights and functions differ.
    """
    field = "reward.functions"
    if cfg.weights and len(cfg.weights) != len(cfg.functions):
        message = f"must have a number for each of the {len(cfg.functions)} reward.functions"
        raise ConfigError("reward.weights", message, repr(cfg.weights))
    functions: list[RewardFunction] = []
    weights = cfg.weights or (1.0,) * len(cfg.functions)
    for path, weight in zip(cfg.functions, weights, strict=True):
        name = path.removesuffix(".py").rpartition(".")[2]
        if name in RESERVED or name in {function.name for function in functions}:
            message = f"two metrics would be called reward/{name}; give the function another name"
            raise ConfigError(field, message, repr(path))
        function = None if path == TASK else function_at(field, path, TASK)
        functions.append(RewardFunction(name, path, weight, function))
    return functions


def function_at(field: str, path: str, other: str) -> Callable[..., Any]:
    """The function with the dotted path `path`, the value of the setting `field`.

    The name of a file stands for its function: the one with the file's name, or else the one called
    `reward` or `compute_score`, or else the only one.

    `other` is a further value that the setting allows; the error message names it. Raises
    ConfigError if the path has no function, and if a module fails, with the line at fault.
    """
    function = function_of(field, path)
    file = path.removesuffix(".py")
    if function is None and "." not in file and is_importable(file):
        return _function_of_file(field, path, file)
    if function is None or isinstance(function, types.ModuleType):
        is_pythons_own = file in sys.stdlib_module_names
        reason = "no such function" if is_pythons_own else absence_of(path)
        message = f"{reason}; name one as 'my_rewards.accuracy', or {other!r}"
        raise ConfigError(field, message, repr(path))
    return function


def _function_of_file(field: str, path: str, file: str) -> Callable[..., Any]:
    try:
        module = find_module(file)
    except Exception as error:
        raise ConfigError(field, failure(error, source_of(file)), repr(path)) from error
    for name in (file, *NAMES_IN_FILES):
        function = getattr(module, name, None)
        if callable(function):
            return function
    own = own_functions(module) if module else {}
    if len(own) == 1:
        return next(iter(own.values()))
    names = [*own] or (other_functions(module) if module else [])
    listing = ", ".join(repr(f"{file}.{name}") for name in names[:MOST_NAMES])
    listing += f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    place = source_of(file) or f"the folder {', '.join(getattr(module, '__path__', [file]))}"
    count = f"{len(own)} functions" if own else "no function of its own"
    advice = f"; name one by its dotted path: {listing}" if names else ""
    raise ConfigError(field, f"{place} has {count}{advice}", repr(path))


def weighted(
    functions: Sequence[RewardFunction],
    parts: Sequence[Sequence[float | None]],
    logged: Mapping[str, float],
) -> list[Reward]:
    """The reward of each response: the weighted sum of the functions' numbers for it.

    `parts[f][i]` is the number of function f for response i, None if f does not judge it. Every
    reward also has the metrics `logged`. Sums are rounded to float32, so that 0.7 + 0.2 + 0.1 is 1.
    """
    rewards = []
    for item_parts in zip(*parts, strict=True):
        judged = [(f, x) for f, x in zip(functions, item_parts, strict=True) if x is not None]
        total = float(np.float32(sum(f.weight * x for f, x in judged)))
        rewards.append(Reward(total, {f.name: x for f, x in judged} | dict(logged)))
    return rewards
