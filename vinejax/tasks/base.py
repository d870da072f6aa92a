"""What a task is, how one is found, and how its files are read."""

import difflib
import gzip
import importlib
import json
import pkgutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from vinejax.errors import ConfigError, DataError
from vinejax.settings import DataConfig
from vinejax.types import Problem

if TYPE_CHECKING:
    from vinejax.grading import Grader

Split = Literal["train", "validation", "test"]


@runtime_checkable
class Task(Protocol):
    """Problems with a reward. Any module with `make(data: DataConfig) -> Task` can be `data.task`.

    Nothing here sees token ids; prompts are encoded by `tasks/prompts.py` and step boundaries
    are mapped to tokens by `tasks/steps.py`. The protocols below are what a task may have besides.
    """

    name: str

    def load(self, split: Split) -> list[Problem]:
        """The problems of a split, in the same order on every host."""
        ...

    def prompt(self, problem: Problem) -> str:
        """What the model is given."""
        ...

    def solution(self, problem: Problem) -> str:
        """A worked solution in the form of a response: what supervised warm-up trains on."""
        ...

    def split(self, text: str) -> list[int]:
        """Character boundaries [0, ..., len(text)] of the reasoning steps of any response."""
        ...

    def answer(self, text: str) -> str | None:
        """The final answer of a response, as voted on by maj@k; None if it gives none."""
        ...

    def reward(self, problem: Problem, response: str) -> float:
        """The reward of a response's outcome; 1.0 and more counts as correct."""
        ...


@runtime_checkable
class BatchGraded(Protocol):
    """A task that compares answers in the run's grader, a batch at a time.

    `style` is that of the grader, 'math' if the task has none; its mode is `grader.mode`.
    """

    def rewards(self, items: Sequence[tuple[Problem, str]], grader: "Grader") -> list[float]:
        """What `reward` says of every (problem, response), in order."""
        ...


@runtime_checkable
class WithGold(Protocol):
    """A task whose golds the grader reads before the run, to find those that it cannot read."""

    def gold(self, problem: Problem) -> str | None:
        """The bare gold answer; None where the problem has none."""
        ...


@runtime_checkable
class StepRewarded(Protocol):
    """A task with process rewards, which are added to that of the outcome."""

    def step_rewards(self, problem: Problem, steps: Sequence[str]) -> Sequence[float]:
        """The reward of each of a response's steps, the texts that `split` makes of it."""
        ...


def reference_prompt(question: str) -> str:
    """The reference's prompt, for every data set; the response begins with a line end.

    Source: prompt_library/MATH_step_by_step_sft.jsonnet and generic_GSM8K_step_by_step.jsonnet.
    """
    return f"[MATH_TASK] Problem:\n{question}\n\nSolution:"


def load_task(data: DataConfig) -> Task:
    """The task that `data.task` names: `make(data)` of that module, one of ours or the user's.

    Raises ConfigError for a module that does not exist or has no usable `make`. An import that
    fails inside an existing module is passed on as it is.
    """
    name = data.task
    if not all(part.isidentifier() for part in name.split(".")):
        raise _unknown(name)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        raise _unknown(name) from None
    if not hasattr(module, "make"):
        raise ConfigError("data.task", "the module has no make(data)", repr(name))
    task = module.make(data)
    if not isinstance(task, Task):
        members = ("name", "load", "prompt", "solution", "split", "answer", "reward")
        lacks = ", ".join(member for member in members if not hasattr(task, member))
        raise ConfigError("data.task", f"make(data) gave a task without {lacks}", repr(name))
    return task


def _unknown(name: str) -> ConfigError:
    package = importlib.import_module("vinejax.tasks")
    modules = [info.name for info in pkgutil.iter_modules(package.__path__)]
    ours = [m for m in modules if hasattr(importlib.import_module(f"vinejax.tasks.{m}"), "make")]
    nearest = difflib.get_close_matches(name.rsplit(".", 1)[-1], ours, n=1, cutoff=0.0)[0]
    message = f"no such module; the nearest of ours is 'vinejax.tasks.{nearest}'"
    return ConfigError("data.task", message, repr(name))


def read_jsonl(path: str | Path, fields: tuple[str, ...] = ()) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a JSON Lines file, each with the number of its line, from 1.

    Every object has a string under every name in `fields`. Blank lines are passed over; a file
    whose name ends in .gz is unpacked. Raises DataError that names the file, and the line where
    there is one: a file that is missing, empty or damaged, a line that is not UTF-8 or not a JSON
    object, a needed field that is missing, not a string or not a text.
    """
    file, rows = str(path), []
    for number, line in _lines(file):
        if line.strip():
            row = _parse(line, file, number)
            check_fields(row, fields, file, number)
            rows.append((number, row))
    if not rows:
        raise DataError(file, None, "no rows")
    return rows


def _lines(file: str) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers; a line ends at a newline and nowhere else."""
    open_bytes = gzip.open if file.endswith(".gz") else open
    try:
        with open_bytes(file, "rb") as lines:
            yield from enumerate(lines, start=1)
    except OSError as error:
        raise DataError(file, None, error.strerror or str(error)) from None
    except (EOFError, zlib.error) as error:
        raise DataError(file, None, f"damaged: {error}") from None


def _parse(line: bytes, file: str, number: int) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(file, number, f"not UTF-8 text ({error.reason})") from None
    except json.JSONDecodeError as error:
        message = f"not JSON ({error.msg}, column {error.colno})"
        raise DataError(file, number, message) from None


def check_fields(row: Any, fields: tuple[str, ...], file: str, number: int) -> None:
    """DataError unless `row` is an object with a text under every name in `fields`."""
    if not isinstance(row, dict):
        raise DataError(file, number, f"expected an object, found {type(row).__name__}")
    for field in fields:
        if field not in row:
            raise DataError(file, number, f"field {field!r} is missing")
        if not isinstance(row[field], str):
            kind = type(row[field]).__name__
            raise DataError(file, number, f"field {field!r} must be a string, not {kind}")
        check_text(row[field], f"field {field!r}", file, number)


def check_text(text: str, what: str, file: str, number: int) -> None:
    """DataError for a string with half a character, such as JSON's `"\\ud800"`.

    It has no UTF-8 form: no tokenizer takes it, and no file could hold it.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        message = f"{what} holds {half!r}, half a character, which no UTF-8 text has"
        raise DataError(file, number, message) from None
