"""What a task is, how one is found, and how its files are read."""

import difflib
import gzip
import importlib
import json
import pkgutil
import zlib
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from vinejax.config import DataConfig
from vinejax.errors import ConfigError, DataError
from vinejax.types import Problem

Split = Literal["train", "validation", "test"]


@runtime_checkable
class Task(Protocol):
    """Problems with a reward. Any module with `make(data: DataConfig) -> Task` can be `data.task`.

    Nothing here sees token ids; prompts are encoded by `tasks/prompts.py` and step boundaries
    are mapped to tokens by `tasks/steps.py`.
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
        """The return of a response; 1.0 and more counts as correct."""
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


def read_jsonl(path: str | Path, fields: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """The objects of a JSON Lines file, each with a string under every name in `fields`.

    Blank lines are passed over; a file whose name ends in .gz is unpacked. Raises DataError that
    names the file, and the line where there is one: a file that is missing, empty, damaged or not
    UTF-8, a line that is not a JSON object, a needed field that is missing or not a string.
    """
    file, rows = str(path), []
    open_text = gzip.open if file.endswith(".gz") else open
    try:
        # Not splitlines(): JSON strings may hold U+2028 and other line ends of Unicode.
        with open_text(path, "rt", encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    rows.append(_parse(line, file, number))
                    check_fields(rows[-1], fields, file, number)
    except UnicodeDecodeError as error:
        raise DataError(file, None, f"not UTF-8 text ({error.reason})") from None
    except OSError as error:
        raise DataError(file, None, error.strerror or str(error)) from None
    except (EOFError, zlib.error) as error:
        raise DataError(file, None, f"damaged: {error}") from None
    if not rows:
        raise DataError(file, None, "no rows")
    return rows


def _parse(line: str, file: str, number: int) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        message = f"not JSON ({error.msg}, column {error.colno})"
        raise DataError(file, number, message) from None


def check_fields(row: Any, fields: tuple[str, ...], file: str, number: int) -> None:
    """DataError unless `row` is an object with a string under every name in `fields`."""
    if not isinstance(row, dict):
        raise DataError(file, number, f"expected an object, found {type(row).__name__}")
    for field in fields:
        if field not in row:
            raise DataError(file, number, f"field {field!r} is missing")
        if not isinstance(row[field], str):
            kind = type(row[field]).__name__
            raise DataError(file, number, f"field {field!r} must be a string, not {kind}")
