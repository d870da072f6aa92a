"""A wrapper of a user's task that checks each of its results."""

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

from vinejax.core.errors import UserError
from vinejax.core.plugins import failure, file_of, finite_number, listed, place_of, shown, source_of
from vinejax.core.types import Problem
from vinejax.grading.extract import Style


class CheckedTask:
    """A user's task whose results are checked against `Task` and the optional protocols.

    The task may return lists as tuples, arrays or iterators, and numbers as scalars of any library.
    A method raises UserError, in one line with file and line number, if the task's method fails or
    its result does not fit the protocol. Members that no protocol names are passed on unchecked.

    Raises UserError for a method that is no function, and for an attribute that does not fit.
    """

    def __init__(self, task: Any):
        self._task = task
        self._set_attributes()
        for name, check in RESULTS.items():
            function = getattr(task, name, None)
            if function is not None:
                setattr(self, name, self._method(name, function, check))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_task"], name)

    def _set_attributes(self) -> None:
        for name, check in ATTRIBUTES.items():
            if hasattr(self._task, name):
                setattr(self, name, self._attribute(check, name, getattr(self._task, name)))

    def _attribute(self, check: Callable[..., Any], name: str, value: Any) -> Any:
        """The value of `name` as `check` returns it. Raises UserError if `check` rejects it."""
        try:
            return check(value)
        except ValueError as error:
            place = source_of(type(self._task).__module__)
            raise UserError(f"{place}: `{name}` is {shown(value)}; needed is {error}") from None

    def _method(self, name: str, function: Any, check: Callable[..., Any]) -> Callable[..., Any]:
        """The method that calls `function` and checks its result."""
        self._attribute(_kind(Callable, "a function"), name, function)

        def checked(*arguments: Any) -> Any:
            where, response = f"task {self._task.name}", ""
            if arguments and isinstance(arguments[0], Problem):
                where += f", problem {arguments[0].id}"
                response = "".join(f" for the response {text!r:.200}" for text in arguments[1:])
            try:
                result = function(*arguments)
                result = list(result) if isinstance(result, Iterator) else result
            except UserError:
                raise
            except (Exception, SystemExit) as error:
                files = source_of(type(self._task).__module__), file_of(function)
                reason = failure(error, *files)
                raise UserError(f"{where}: `{name}` failed{response}: {reason}") from error
            if name == "configure":
                self._set_attributes()  # the settings may have changed them
            try:
                return check(result, *arguments)
            except ValueError as error:
                message = f"`{name}` gave {shown(result)}; needed is {error}"
                raise UserError(f"{where}: {place_of(function)}: {message}") from None

        return checked


def _kind(kind: Any, what: str) -> Callable[..., Any]:
    """A function that checks that a result is of this kind; `what` names the kind in the error."""

    def check(result: Any, *_: Any) -> Any:
        if not isinstance(result, kind):
            raise ValueError(what)
        return result

    return check


_text, _text_or_none = _kind(str, "a text"), _kind(str | None, "a text, or None")


def _style(result: Any) -> Any:
    if result not in get_args(Style):
        raise ValueError(f"one of {', '.join(map(repr, get_args(Style)))}")
    return result


def _names(result: Any) -> tuple[str, ...]:
    names = listed(result)
    if names is None or not all(isinstance(name, str) for name in names):
        raise ValueError("a tuple of texts")
    return tuple(names)


def _failure(result: Any, *_: Any) -> dict[str, str] | None:
    parts = [*result, *result.values()] if isinstance(result, dict) else [result]
    if result is not None and not all(isinstance(part, str) for part in parts):
        raise ValueError("a dict of texts, 'input', 'expected' and 'got', or None")
    return result


def _tools(result: Any) -> list[dict[str, Any]]:
    tools = listed([] if result is None else result)
    for tool in [None] if tools is None else tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError("a list of JSON schemas, such as those of vinejax.tasks.tools.Tools")
    return list(tools or ())


def _whole_numbers(result: Any, *_: Any) -> list[int]:
    try:
        return [operator.index(x) for x in listed(result) or [None]]
    except TypeError:
        raise ValueError("a list of whole numbers") from None


def _count(result: Any) -> int:
    try:
        count = operator.index(result)
    except TypeError:
        count = 0
    if count < 1:
        raise ValueError("a whole number of at least 1")
    return count


def _environment(result: Any) -> Any:
    if not hasattr(result, "reset") or not hasattr(result, "step"):
        raise ValueError("an environment with reset(problem, seed) and step(action)")
    return result


def _problems(result: Any, *_: Any) -> list[Problem]:
    problems = listed(result)
    if problems is None:
        raise ValueError("a list of Problem")
    for i, problem in enumerate(problems):
        if not isinstance(problem, Problem):
            raise ValueError(f"a list of Problem, and entry {i} is {problem!r:.80}")
        for field in ("id", "question", "answer"):
            if not isinstance(value := getattr(problem, field), str):
                needed = f"a text as the {field} of every Problem"
                raise ValueError(f"{needed}, and that of entry {i} is {shown(value, 80)}")
    return problems


def _boundaries(result: Any, text: str) -> list[int]:
    needed = f"a list of whole numbers that rise from 0 to {len(text)}, the length of the text"
    return _rising(result, needed, lambda x: x[0] == 0 and x[-1] == len(text) and x == sorted(x))


def _ends(result: Any, num_tokens: int) -> list[int]:
    needed = (
        f"a list of whole numbers that rise from 1 or more to {num_tokens}, the number of tokens"
    )

    def holds(ends: list[int]) -> bool:
        return ends[-1] == num_tokens and all(a < b for a, b in itertools.pairwise([0, *ends]))

    return _rising(result, needed, holds)


def _rising(result: Any, needed: str, holds: Callable[[list[int]], bool]) -> list[int]:
    try:
        numbers = _whole_numbers(result)
    except ValueError:
        raise ValueError(needed) from None
    if not holds(numbers):
        raise ValueError(needed)
    return numbers


def _reward(result: Any, *_: Any) -> float:
    if (number := finite_number(result)) is None:
        raise ValueError("a finite number")
    return number


def _rewards(result: Any, items: Sequence[tuple[Problem, str]], *_: Any) -> list[float]:
    return _each(result, "response", [f"problem {problem.id}" for problem, _ in items])


def _step_rewards(result: Any, _: Problem, steps: Sequence[str]) -> list[float]:
    return _each(result, "step", [f"step {i}" for i in range(len(steps))])


def _each(result: Any, what: str, names: list[str]) -> list[float]:
    needed = f"a finite number for each {what}"
    values = listed(result)
    if values is None or len(values) != len(names):
        count = "" if values is None else f", not {len(values)} for {len(names)}"
        raise ValueError(f"a list with {needed}{count}")
    numbers = []
    for value, name in zip(values, names, strict=True):
        if (number := finite_number(value)) is None:
            raise ValueError(f"{needed}, and that of {name} is {shown(value, 80)}")
        numbers.append(number)
    return numbers


def _tokenizer(result: Any) -> Any:
    if not hasattr(result, "encode") or not hasattr(result, "decode"):
        raise ValueError("a tokenizer of transformers")
    return result


# What the protocols of tasks/base.py require: check(result, *arguments) returns the result, or
# raises ValueError with the requirement. Every member of a protocol is here, because from Python
# 3.12 on `isinstance` does not see a member that only `__getattr__` passes on.
ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "name": _text,
    "style": _style,
    "reads": _names,
    "max_turns": _count,
    "ends_turn": _names,
    "tools": _tools,
    "sections": _names,
    "own_rules": bool,
    "free_steps": lambda result: tuple(_whole_numbers(result)),
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
    "configure": lambda result, *_: result,
    "failure": _failure,
}
