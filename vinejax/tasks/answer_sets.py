"""The base of tasks for evaluation only: one set of problems, each with a bare answer.

They have MATH's prompt, and answers are extracted as for MATH; from a response with an answer after
'####' and without a box as for GSM8K, so that a model trained on either can be tested.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vinejax import grading
from vinejax.core.errors import ConfigError, DataError
from vinejax.core.types import Problem
from vinejax.grading.extract import MARKER, Style
from vinejax.tasks.base import AnswerTask, Split
from vinejax.tasks.files import is_file, read_file
from vinejax.tasks.read_rows import problems_of, read_split

DOLLAR = re.compile(r"(?<!\\)\$")
# How an answer after '####' begins, as no heading does: '1. First' is one.
MARKED = re.compile(r"(?!\d+[.)] )[-+−±$€£¥¢\\\d]|\.\d")


class AnswerSet(AnswerTask):
    """A task with only a test split; `tasks/base.py` documents its methods.

    `path` is a file (`tasks/files.py` names the kinds), a folder with such a file called 'test', or
    the name of a `datasets` data set. Rows have strings under `fields`; `read` returns the question
    and the answer of a row, or raises ValueError with the fault of the row.

    Raises ConfigError if `path` is empty.
    """

    def __init__(
        self,
        name: str,
        path: str,
        fields: tuple[str, ...],
        read: Callable[[dict[str, Any]], tuple[str, str]],
    ):
        if not path:
            raise ConfigError("data.path", f"name the file with the problems of {name}", "''")
        super().__init__(path)
        self.name = name
        self._fields = fields
        self._read = read

    def load(self, split: Split) -> list[Problem]:
        """Problems named after their row, 'test/17'; `answer` is bare."""
        if split != "test":
            raise DataError(self.path, None, f"{self.name} is an evaluation set, without {split}")
        file = Path(self.path).expanduser()
        if is_file(file):
            rows = read_file(file, self._fields)
        else:
            rows = read_split(self.path, split, self._fields)

        def problem(i: int, row: dict[str, Any]) -> Problem:
            return Problem(f"{split}/{i}", *self._read(row), row)

        return problems_of(rows, problem, {})

    def solution(self, problem: Problem) -> str:
        """The answer in a box; nothing is trained on it, as there is no train split."""
        return f"\nThe answer is $\\boxed{{{DOLLAR.sub('', problem.answer)}}}$."

    def answer(self, text: str) -> str | None:
        return grading.extract_answer(text, style=style_of(text))

    def gold(self, problem: Problem) -> str | None:
        return problem.answer


def style_of(response: str) -> Style:
    """The style that a response's answer is extracted in: GSM8K's for '####' without a box.

    A heading of Markdown is no such mark: other lines follow it, and it begins like no number.
    """
    _, marker, after = response.rpartition(MARKER)
    if not marker or "\\boxed" in response:
        return "math"
    after = after.strip()
    return "gsm8k" if "\n" not in after or MARKED.match(after) else "math"
