r"""Any data set of the hub, folder or file, with named columns, graded as math or by functions.

`data.path` is a data set of the hub, with `data.subset` as its configuration; or a folder with a
file for `train` and perhaps files for `validation` and `test`; or one file. Missing splits are held
out of train (`tasks/splits.py`). `data.question` and `data.answer` name columns.
`data.template` is the prompt. In it {question} stands for the question, and the name of any other
column in braces for that column.

The reward is 1 if the answer of a response equals the row's answer by strict grading, else 0. The
row's answer may be within a worked solution, after '####' or in \boxed{}. `reward.functions`
replaces this reward or adds to it (`tasks/rewards.py`). Reward functions get every column by its
name.
"""

import json
import re
from collections.abc import Callable, Hashable
from decimal import Decimal
from pathlib import Path
from typing import Any

from vinejax.core.errors import ConfigError, DataError
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.runtime.distributed import is_writer
from vinejax.tasks.answer_sets import AnswerTask
from vinejax.tasks.answers import bare_answer, written
from vinejax.tasks.base import COLUMN_FIELDS, Split, check_template
from vinejax.tasks.files import FileRows, is_file, read_file
from vinejax.tasks.read_rows import has_split, problems_of, read_split
from vinejax.tasks.splits import Distinct, HeldOut

# A field of a template: the question, or a column, whose name may have any characters. A brace
# behind an ASCII letter, a backslash, another brace or the like belongs to a formula or to code, as
# in \boxed{answer}. So does one behind a closing brace, as in \frac{a}{b}, unless that brace ends a
# field that is filled in.
FIELD = re.compile(r"\{question\}|(?<![A-Za-z0-9_\\{^$])\{(?P<name>[^{}\n]+)\}(?!\})")

UNREAD_NAMES = ("val", "valid", "dev")  # names that others give to the split validation

# (the messages before the question, the question)
ContextQuestion = tuple[tuple[tuple[str, str], ...], str]


def make(data: DataConfig) -> "Table":
    if not data.path:
        message = (
            "name a data set of the hub, a folder with train.jsonl, .parquet or .csv, or a file"
        )
        raise ConfigError("data.path", message, "''")
    for field in ("question", "answer"):
        if not getattr(data, field):
            raise ConfigError(f"data.{field}", "name the column", "''")
    check_template(data.template)
    return Table(data)


class RowTask:
    """The base of tasks whose problems are rows with named columns; subclasses define `_pair`."""

    def __init__(self, data: DataConfig):
        self.path = data.path
        self._data = data
        self._fills_columns = any(field["name"] for field in FIELD.finditer(data.template))
        self._splits = HeldOut(self.read_source, self._has, self._whole_prompt)

    def load(self, split: Split) -> list[Problem]:
        """Problems with their row as `columns`, without repetitions.

        The number in a name such as 'train/17' is the place, from 0, among the distinct rows of the
        data's split.
        """
        return self._splits.load(split, self.path)

    def prompt(self, problem: Problem) -> str:
        """`data.template` with the question and the named columns of the problem's row filled in.

        A column of `hidden_columns` is not filled in.
        """
        template, texts, end, is_filled = self._data.template, [], 0, False
        for field in FIELD.finditer(template):
            between = template[end : field.start()]
            follows_field = is_filled and not between
            in_formula = template[: field.start()].endswith("}") and not follows_field
            value = self._value(problem, field, in_formula)
            is_filled, end = value is not None, field.end()
            texts += [between, field[0] if value is None else value]
        return "".join([*texts, template[end:]])

    def _value(self, problem: Problem, field: re.Match[str], in_formula: bool) -> str | None:
        """What a field of the template stands for; None if it stays as it is."""
        name = field["name"]
        if not name:
            return problem.question
        hidden = {column.partition(".")[0] for column in self.hidden_columns()}
        if in_formula or name.partition(".")[0] in hidden:
            return None
        try:
            return _text_in_prompt(column(problem.columns, name, may_be_empty=True))
        except ValueError:  # there is no such column
            return None

    def hidden_columns(self) -> tuple[str, ...]:
        """The columns that no prompt may show, because they contain answers."""
        return self._data.answer, self._data.solution

    def _has(self, source: str) -> bool:
        """Whether the data have the split. Warns of a folder's split with a name that is unread."""
        subset = self._data.subset or None
        if has_split(self.path, source, subset):
            return True
        is_folder = Path(self.path).expanduser().is_dir()
        for name in UNREAD_NAMES if source == "validation" and is_folder else ():
            if has_split(self.path, name, subset) and is_writer():
                message = "is not read, and rows of train take its place; rename it to 'validation'"
                print(f"warning: {self.path}: the split {name!r} {message}")
        return False

    def read_source(self, source: str) -> list[Problem]:
        """The problems of the split that the data calls `source`, or of the one file."""
        distinct = Distinct(self._prompt_and_answer)
        rows = distinct_rows(self.path, source, self._data.subset, distinct)
        problems = problems_of(rows, lambda i, row: self._problem(f"{source}/{i}", row), {})
        _fill_columns(rows)
        distinct.report(rows.file)
        return problems

    def _problem(self, name: str, row: dict[str, Any]) -> Problem:
        (context, question), answer = self._pair(row)
        return Problem(name, question, answer, row, context)

    def _pair(self, row: dict[str, Any]) -> tuple[ContextQuestion, str]:
        """((context, question), answer) of a row. Raises ValueError if any of them is missing."""
        raise NotImplementedError

    def _prompt_and_answer(self, row: dict[str, Any]) -> tuple[Hashable, str]:
        """The prompt and answer of a row. Raises ValueError if either of them is missing.

        Rows of one question have several prompts if the template has other columns, too.
        """
        pair = (context, question), answer = self._pair(row)
        if not self._fills_columns:  # to fill in the template takes as long as to read the row
            return pair
        return self._whole_prompt(Problem("", question, answer, row, context)), answer

    def _whole_prompt(self, problem: Problem) -> Hashable:
        """The messages before the question, and the filled-in template; subclasses may add more."""
        return problem.context, RowTask.prompt(self, problem)

    def _worked(self, problem: Problem, read: Callable[[Any, str], str]) -> str:
        """The worked solution that `read` takes from the row's column `data.solution`.

        Raises ConfigError if that setting is empty, and DataError if `read` raises ValueError.
        """
        if not self._data.solution:
            message = "name the column with worked solutions, which this run learns from"
            raise ConfigError("data.solution", message, "''")
        try:
            return read(problem.columns, self._data.solution)
        except ValueError as error:
            raise DataError(f"{self.path} {problem.id}", None, str(error)) from None


class Table(RowTask, AnswerTask):
    """Rows with named columns as a task; `tasks/base.py` documents its methods."""

    name = "table"
    reads = COLUMN_FIELDS

    def _problem(self, name: str, row: dict[str, Any]) -> Problem:
        problem = super()._problem(name, row)
        if not problem.question:
            raise ValueError(f"column {self._data.question!r}: the question is empty")
        return problem

    def _pair(self, row: dict[str, Any]) -> tuple[ContextQuestion, str]:
        return chat_of(row, self._data.question), answer_of(row, self._data.answer)

    def solution(self, problem: Problem) -> str:
        """The worked solution of the row; raises ConfigError without `data.solution`."""
        return self._worked(problem, answer_of)

    def gold(self, problem: Problem) -> str | None:
        """The row's answer, reduced by `bare_answer`; None if the result is empty."""
        return bare_answer(problem.answer) or None


def distinct_rows(path: str, source: str, subset: str, distinct: Distinct) -> FileRows:
    """The distinct rows of a split, or of the one file `path`."""
    file = Path(path).expanduser()
    if subset and file.exists() and not (file / subset).is_dir():
        raise ConfigError("data.subset", f"{path} has no such folder; leave it out", repr(subset))
    if is_file(file):
        return read_file(file, keep=distinct.keep)
    return read_split(path, source, (), subset or None, distinct.keep)


def _fill_columns(rows: FileRows) -> None:
    """Gives each row the columns that only other rows have, with the value None, as in a table."""
    names = list(dict.fromkeys(name for _, row in rows.numbered for name in row))
    for _, row in rows.numbered:
        if len(row) < len(names):
            row.update({name: None for name in names if name not in row})


def _text_in_prompt(value: Any) -> str:
    """A column's value as a text: a list of texts as lines, another list or an object as JSON.

    What JSON lacks, such as a date of a Parquet file, is a text within it.
    """
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return "" if value is None else written(value)


def column(row: Any, name: str, may_be_empty: bool = False) -> Any:
    """The value of a column; 'a.b' is column 'a.b', or part 'b' of column 'a'.

    Raises ValueError for a missing column, naming the existing ones, and unless `may_be_empty` for
    a missing value.
    """
    value = row
    parts = [name] if name in row else name.split(".")
    for part in parts:
        if not isinstance(value, dict) or part not in value:
            existing = ", ".join(map(repr, row))
            raise ValueError(f"column {name!r} is missing; there are {existing}")
        value = value[part]
    if value is None and not may_be_empty:
        raise ValueError(f"column {name!r} has no value, or one that is not finite")
    return value


def chat_of(row: Any, name: str) -> ContextQuestion:
    """The question in a column, which holds a text, or a chat that ends with the user's message.

    Raises ValueError for anything else.
    """
    value, context = column(row, name), ()
    if isinstance(value, list) and all(isinstance(message, dict) for message in value):
        chat = [(message.get("role"), message.get("content")) for message in value]
        if not chat or chat[-1][0] != "user":
            roles = ", ".join(str(role) for role, _ in chat) or "none"
            raise ValueError(f"column {name!r} must end with the user's message, not {roles}")
        if calls := next(filter(None, (message.get("tool_calls") for message in value)), None):
            raise ValueError(
                f"column {name!r} has calls of tools, which no prompt shows: {calls!r:.40}"
            )
        *context, (_, value) = chat
        if not all(isinstance(part, str) for message in context for part in message):
            raise ValueError(f"column {name!r} has a message that is no text, in {context!r:.60}")
    if not isinstance(value, str):
        raise ValueError(f"column {name!r} must be a text, found {value!r:.60}")
    return tuple(context), value.strip()


def answer_of(row: Any, name: str) -> str:
    """The answer in column `name`, a text or a number, as `written` writes it.

    Raises ValueError for anything else.
    """
    value = column(row, name)
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise ValueError(f"column {name!r} must be a text or a number, found {value!r:.60}")
    return written(value)
