"""A task of a user's own, each of whose results is checked as it enters."""

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

from vinejax.core.errors import UserError
from vinejax.core.plugins import failure, finite_number, listed, place_of, source_of
from vinejax.core.types import Problem
from vinejax.grading.extract import Style


class CheckedTask:
    """A task whose results are of the kinds that `Task` and the optional protocols promise.

    Lists may come as tuples, arrays or iterators, and numbers as scalars of any library. A function
    raises UserError, one line with a file and a line, if the task's fails or gives something of
    another kind. What no protocol names is the task's own, unchecked.

    Raises UserError for a member that is no function, and for an attribute of another kind.
    """

    def __init__(self, task: Any):
        self._task = task
        for name, rule in ATTRIBUTES.items():
            if hasattr(task, name):
                setattr(self, name, self._obeying(rule, name, getattr(task, name)))
        for name, rule in RESULTS.items():
            function = getattr(task, name, None)
            if function is not None:
                setattr(self, name, self._checked(name, function, rule))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_task"], name)

    def _obeying(self, rule: Callable[..., Any], name: str, value: Any) -> Any:
        try:
            return rule(value)
        except ValueError as error:
            place = source_of(type(self._task).__module__)
            raise UserError(f"{place}: `{name}` is {value!r:.200}; needed is {error}") from None

    def _checked(self, name: str, function: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
        self._obeying(_kind(Callable, "a function"), name, function)

        def checked(*arguments: Any) -> Any:
            where, response = f"task {self._task.name}", ""
            if arguments and isinstance(arguments[0], Problem):
                where += f", problem {arguments[0].id}"
                response = "".join(f" for the response {text!r:.200}" for text in arguments[1:])
            try:
                found = function(*arguments)
                found = list(found) if isinstance(found, Iterator) else found
            except UserError:
                raise
            except Exception as error:
                reason = failure(error, source_of(type(self._task).__module__))
                raise UserError(f"{where}: `{name}` failed{response}: {reason}") from error
            try:
                return rule(found, *arguments)
            except ValueError as error:
                rule_text = f"`{name}` gave {found!r:.200}; needed is {error}"
                raise UserError(f"{where}: {place_of(function)}: {rule_text}") from None

        return checked


def _kind(kind: Any, what: str) -> Callable[..., Any]:
    """The rule that a result is of this kind."""

    def rule(found: Any, *_: Any) -> Any:
        if not isinstance(found, kind):
            raise ValueError(what)
        return found

    return rule


_text, _text_or_none = _kind(str, "a text"), _kind(str | None, "a text, or None")


def _style(found: Any) -> Any:
    if found not in get_args(Style):
        raise ValueError(f"one of {', '.join(map(repr, get_args(Style)))}")
    return found


def _names(found: Any) -> tuple[str, ...]:
    names = listed(found)
    if names is None or not all(isinstance(name, str) for name in names):
        raise ValueError("a tuple of texts")
    return tuple(names)


def _whole_numbers(found: Any, *_: Any) -> list[int]:
    try:
        return [operator.index(x) for x in listed(found) or [None]]
    except TypeError:
        raise ValueError("a list of whole numbers") from None


def _count(found: Any) -> int:
    try:
        count = operator.index(found)
    except TypeError:
        count = 0
    if count < 1:
        raise ValueError("a whole number of at least 1")
    return count


def _environment(found: Any) -> Any:
    if not hasattr(found, "reset") or not hasattr(found, "step"):
        raise ValueError("an environment with reset(problem, seed) and step(action)")
    return found


def _problems(found: Any, *_: Any) -> list[Problem]:
    problems = listed(found)
    if problems is None:
        raise ValueError("a list of Problem")
    for i, problem in enumerate(problems):
        if not isinstance(problem, Problem):
            raise ValueError(f"a list of Problem, and entry {i} is {problem!r:.80}")
        for field in ("id", "question", "answer"):
            if not isinstance(value := getattr(problem, field), str):
                rule = f"a text as the {field} of every Problem"
                raise ValueError(f"{rule}, and that of entry {i} is {value!r:.80}")
    return problems


def _boundaries(found: Any, text: str) -> list[int]:
    rule = f"a list of whole numbers that rise from 0 to {len(text)}, the length of the text"
    return _rising(found, rule, lambda x: x[0] == 0 and x[-1] == len(text) and x == sorted(x))


def _ends(found: Any, num_tokens: int) -> list[int]:
    rule = f"a list of whole numbers that rise from 1 or more to {num_tokens}, the number of tokens"

    def holds(ends: list[int]) -> bool:
        return ends[-1] == num_tokens and all(a < b for a, b in itertools.pairwise([0, *ends]))

    return _rising(found, rule, holds)


def _rising(found: Any, rule: str, holds: Callable[[list[int]], bool]) -> list[int]:
    try:
        numbers = _whole_numbers(found)
    except ValueError:
        raise ValueError(rule) from None
    if not holds(numbers):
        raise ValueError(rule)
    return numbers


def _reward(found: Any, *_: Any) -> float:
    if (number := finite_number(found)) is None:
        raise ValueError("a finite number")
    return number


def _rewards(found: Any, items: Sequence[tuple[Problem, str]], *_: Any) -> list[float]:
    return _each(found, "response", [f"problem {problem.id}" for problem, _ in items])


def _step_rewards(found: Any, _: Problem, steps: Sequence[str]) -> list[float]:
    return _each(found, "step", [f"step {i}" for i in range(len(steps))])


def _each(found: Any, what: str, names: list[str]) -> list[float]:
    rule = f"a finite number for each {what}"
    given = listed(found)
    if given is None or len(given) != len(names):
        count = "" if given is None else f", not {len(given)} for {len(names)}"
        raise ValueError(f"a list with {rule}{count}")
    numbers = []
    for value, name in zip(given, names, strict=True):
        if (number := finite_number(value)) is None:
            raise ValueError(f"{rule}, and that of {name} is {value!r:.80}")
        numbers.append(number)
    return numbers


def _tokenizer(found: Any) -> Any:
    if not hasattr(found, "encode") or not hasattr(found, "decode"):
        raise ValueError("a tokenizer of transformers")
    return found


# What the protocols of tasks/base.py promise: rule(result, *arguments) gives the result, or raises
# ValueError with what is needed.
ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "name": _text,
    "style": _style,
    "reads": _names,
    "max_turns": _count,
    "ends_turn": _names,
    "free_steps": lambda found: tuple(_whole_numbers(found)),
}
RESULTS: dict[str, Callable[..., Any]] = {
    "load": _problems,
    "prompt": _text,
    "solution": _text,
    "split": _boundaries,
    "answer": _text_or_none,
    "reward": _reward,
    "rewards": _rewards,
    "gold": _text_or_none,
    "step_rewards": _step_rewards,
    "step_ends": _ends,
    "tokenizer": _tokenizer,
    "env": _environment,
}
