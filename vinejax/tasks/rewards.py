"""Reward functions by dotted path (`reward.functions`): called, weighted and added.

Functions written for TRL and for verl work as they are, because arguments go by name:

- A function with a parameter `completions`, `completion_ids` or `prompts` is called once for many
  responses, as TRL calls it, and gives a number for each, in a list, an array or a tensor. It may
  take `prompts` and `completions` (a `Chat` each), `completion_ids`, `question`, `answer`,
  `ground_truth`, every column of the data, each as a list, and `trainer_state`, `log_metric` and
  `log_extra`.
- Any other function is called for one response and gives a number, or like verl's a dict with
  the number as 'score'. It may take `problem` (a `Problem`), `response`, `question`, `answer`,
  verl's `solution_str`, `ground_truth`, `data_source` and `extra_info`, and every column.

Both may be async, and may give None for a response that they do not judge. `ground_truth` is the
answer without its solution. In TRL's lists both are numbers where their columns have numbers.
"""

import asyncio
import atexit
import contextlib
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vinejax.core.errors import ConfigError, UserError
from vinejax.core.plugins import (
    failure,
    finite_number,
    function_of,
    listed,
    place_of,
    source_of,
)
from vinejax.core.settings import RewardConfig
from vinejax.tasks.answers import bare_answer, written

if TYPE_CHECKING:
    from vinejax.core.types import Problem
else:  # vinejax.core.types imports jax, which takes seconds, and a command is checked without it
    Problem = Any

TASK = "task"  # stands for the task's own reward
TAKEN = ("mean", "std", "steps")  # metrics of every run, under reward/
OF_MANY = {"prompts", "completions", "completion_ids"}  # parameters by which TRL's are known

Items = Sequence[tuple[Problem, str]]


class Reward(NamedTuple):
    """The reward of a response: the weighted sum, and the value of each function by its name."""

    total: float
    # None: there is only the task's own reward. A function that did not judge it has no value here.
    parts: dict[str, float] | None = None


class Message(str):
    """The character of a `Chat` at the place of a message, which has that message's fields, too."""

    fields: Mapping[str, str]

    def __getitem__(self, key: Any) -> Any:
        return self.fields[key] if isinstance(key, str) else super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self.fields.get(key, default)


class Chat(str):
    """A text that can be read as TRL's messages: `chat[0]["content"]`.

    TRL gives a function texts or messages, depending on the data, and functions are written for
    either. The text is that of the last message.
    """

    messages: Sequence[Mapping[str, str]]

    @classmethod
    def of(cls, text: str, role: str, context: Iterable[tuple[str, str]] = ()) -> "Chat":
        """The chat of `context`, (role, text) of each message, and then `text` by `role`."""
        chat = cls(text)
        chat.messages = [{"role": by, "content": said} for by, said in (*context, (role, text))]
        return chat

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, int) or not -len(self.messages) <= key < len(self.messages):
            return super().__getitem__(key)
        message = Message(super().__getitem__(slice(key, key + 1 or None)))
        message.fields = self.messages[key]
        return message


@dataclasses.dataclass
class TrainerState:
    """What there is of TRL's `trainer_state`."""

    global_step: int = 0  # iterations that are done
    max_steps: int = 0  # iterations of the run


@dataclasses.dataclass
class RewardCall:
    """What a function of many responses may ask for beside problems and texts.

    `log_metric(name, value)` is a metric, reward/<function>/<name>, the mean over responses;
    `log_extra` does nothing, as episodes have no columns of their own.
    """

    # [responses] token ids; None: the responses were not sampled, and the bytes of their text count
    ids: Sequence[list[int]] | None = None
    state: TrainerState = dataclasses.field(default_factory=TrainerState)
    logged: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    def arguments(self, texts: Sequence[str]) -> dict[str, Any]:
        """The arguments by name, for these responses."""
        return {
            "completion_ids": self.ids or [list(text.encode()) for text in texts],
            "trainer_state": self.state,
            "log_metric": self._log,
            "log_extra": lambda column, values: None,
        }

    def _log(self, name: str, value: Any) -> None:
        """Adds a value of a metric; ValueError, which has the caller's line, if it is no number."""
        if (number := finite_number(value)) is None:
            raise ValueError(f"log_metric({name!r}, {value!r:.200}): a metric is a finite number")
        self.logged.setdefault(name, []).append(number)


@dataclasses.dataclass(frozen=True)
class RewardFunction:
    """A function that `field` names; None stands for the task's own reward."""

    name: str
    path: str
    weight: float
    function: Callable[..., Any] | None
    field: str = "reward.functions"

    @functools.cached_property  # asked for with every response
    def parameters(self) -> list[inspect.Parameter]:
        assert self.function is not None
        return list(inspect.signature(self.function).parameters.values())

    @property
    def is_batched(self) -> bool:
        """Whether the function takes many responses at once, as TRL's reward functions do."""
        return any(parameter.name in OF_MANY for parameter in self.parameters)

    def chosen(self, offered: dict[str, Any]) -> dict[str, Any]:
        """The arguments that the function takes. Raises UserError for one that is not offered."""
        named = [x for x in self.parameters if x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD)]
        for parameter in named:
            if parameter.default is parameter.empty and parameter.name not in offered:
                rule = f"takes {parameter.name!r}, which is none of {', '.join(offered)}"
                raise self.misfit(rule)
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in self.parameters):
            return offered
        names = {parameter.name for parameter in named}
        return {name: value for name, value in offered.items() if name in names}

    def rewards(
        self,
        items: Items,
        task: str,
        prompt: Callable[[Problem], str],
        call: RewardCall | None = None,
        names: Sequence[str] = (),
    ) -> list[float | None]:
        """The function's reward of each item, None where it judges none.

        `names` are those of the items in messages; by default their problems'. Raises UserError,
        with file and line, if it fails or gives anything else.
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
        with self._failing(place):  # a generator runs only now
            result = list(result) if isinstance(result, Iterator) else result
        rewards = listed(result)
        if rewards is None or len(rewards) != len(items):
            count = f"{result!r:.200} as" if rewards is None else len(rewards)
            rule = f"gave {count} rewards for {len(items)} completions"
            raise self.misfit(f"{rule}{place}; needed is a list of as many")
        return self._finite(rewards, names)

    def _finite(self, rewards: list[Any], names: Sequence[str]) -> list[float | None]:
        """The rewards as numbers; UserError, with the name, for one that is neither nor None."""
        numbers = [None if x is None else finite_number(x) for x in rewards]
        for reward, number, name in zip(rewards, numbers, names, strict=True):
            if reward is not None and number is None:
                rule = f"gave {reward!r:.200} for {name}; needed is a finite number, or None"
                raise self.misfit(rule)
        return numbers

    def check(self, problem: Problem, task: str, prompt: Callable[[Problem], str]) -> None:
        """Raises UserError for a parameter that a problem of the run cannot give."""
        if self.is_batched:
            self.chosen(batch_arguments([(problem, "")], prompt, RewardCall()))
        else:
            self.chosen(arguments(problem, "", task))

    def _results(self, chosen: list[dict[str, Any]], places: list[str]) -> list[Any]:
        """What the function gives for each set of arguments; async calls run at the same time.

        `places` are for messages.
        """
        assert self.function is not None
        results = []
        for named, place in zip(chosen, places, strict=True):
            with self._failing(place):
                results.append(self.function(**named))
        if not any(map(inspect.isawaitable, results)):
            return results

        async def awaited(result: Any, place: str) -> Any:
            with self._failing(place):
                return await result

        async def together() -> list[Any]:
            waiting = map(awaited, results, places)
            return await asyncio.gather(*waiting, return_exceptions=True)

        results = _event_loop().run_until_complete(together())
        if errors := [result for result in results if isinstance(result, BaseException)]:
            raise errors[0]
        return results

    def _score(self, result: Any) -> Any:
        if not isinstance(result, dict):
            return result
        if "score" not in result:
            raise self.misfit(f"gave {result!r:.200}, a dict without 'score'")
        return result["score"]

    @contextlib.contextmanager
    def _failing(self, place: str) -> Iterator[None]:
        """Makes an error of the function a UserError with its line."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            reason = failure(error, source_of(self.path.rpartition(".")[0]))
            raise self.error(f"failed{place}: {reason}") from error

    def misfit(self, rule: str) -> UserError:
        """An error of what the function is or gives, with the line where it is defined."""
        assert self.function is not None
        return self.error(f"{rule} ({place_of(self.function)})")

    def error(self, rule: str) -> UserError:
        """An error of the function."""
        return UserError(f"{self.field}: {self.path} {rule}")


@functools.cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """The one loop of async functions: a client that their module keeps belongs to its loop."""
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


def arguments(problem: Problem, response: str, task: str) -> dict[str, Any]:
    """The arguments that a function of one response may take, by name; the columns come last."""
    columns = problem.columns
    fixed = {
        "problem": problem,
        "response": response,
        "question": problem.question,
        "answer": problem.answer,
        "solution_str": response,
        "ground_truth": bare_answer(problem.answer),
        "data_source": columns.get("data_source", task),
        "extra_info": columns.get("extra_info") or {},
    }
    return fixed | {name: value for name, value in columns.items() if name not in fixed}


def batch_arguments(
    items: Items, prompt: Callable[[Problem], str], call: RewardCall
) -> dict[str, Any]:
    """The arguments that a function of many responses may take, by name; the columns come last."""
    problems = [problem for problem, _ in items]
    texts = [response for _, response in items]
    fixed = {
        "prompts": [Chat.of(prompt(problem), "user", problem.context) for problem in problems],
        "completions": [Chat.of(text, "assistant") for text in texts],
        "question": [problem.question for problem in problems],
        "answer": [_own(p, "answer", p.answer) for p in problems],
        "ground_truth": [_own(p, "ground_truth", bare_answer(p.answer)) for p in problems],
        **call.arguments(texts),
    }
    names = dict.fromkeys(name for problem in problems for name in problem.columns)
    columns = {
        name: [problem.columns.get(name) for problem in problems]
        for name in names
        if name not in fixed
    }
    return fixed | columns


def _own(problem: Problem, name: str, text: str) -> str | int | float:
    """The number in column `name` that `text` was written from, as TRL passes it, else `text`."""
    value = problem.columns.get(name)
    return value if isinstance(value, int | float) and written(value) == text else text


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
        function = None if path == TASK else function_at(field, path, TASK)
        functions.append(RewardFunction(name, path, weight, function))
    return functions


def function_at(field: str, path: str, other: str) -> Callable[..., Any]:
    """The function of a dotted path, which `field` names; it may also be `other`, which is ours.

    Raises ConfigError for a path without a function, or whose module fails, with its line.
    """
    function = function_of(field, path)
    if function is None or isinstance(function, types.ModuleType):
        rule = f"no such function; name one as 'my_rewards.accuracy', or {other!r}"
        raise ConfigError(field, rule, repr(path))
    return function


def weighted(
    functions: Sequence[RewardFunction],
    parts: Sequence[Sequence[float | None]],
    logged: Mapping[str, float],
) -> list[Reward]:
    """The rewards whose parts are `parts[function][item]`; all have the metrics `logged`, too."""
    rewards = []
    for item_parts in zip(*parts, strict=True):
        judged = [(f, x) for f, x in zip(functions, item_parts, strict=True) if x is not None]
        total = sum(f.weight * x for f, x in judged)
        rewards.append(Reward(total, {f.name: x for f, x in judged} | dict(logged)))
    return rewards
