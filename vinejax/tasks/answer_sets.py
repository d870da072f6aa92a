"""The base of tasks for evaluation only: one set of problems with bare answers.

These tasks have MATH's prompt. If a response has an answer after '####' and no box, its answer is
extracted as for GSM8K, otherwise as for MATH. Models trained on MATH and models trained on GSM8K
can thus be tested.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vinejax import grading
from vinejax.core.errors import ConfigError, DataError
from vinejax.core.types import Problem
from vinejax.grading.extract import MARKER, Style, after_thinking
from vinejax.tasks.base import ReferenceTask, Split
from vinejax.tasks.files import is_file, read_file
from vinejax.tasks.read_rows import problems_of, read_split

DOLLAR = re.compile(r"(?<!\\)\$")
# The beginning of an answer after '####'; headings such as '1. First' do not match.
MARKED = re.compile(r"(?!\d+[.)] )[-+−±$€£¥¢\\\d]|\.\d")


class AnswerTask(ReferenceTask):
    """The base of tasks with bare answers; all grading modes compare the results of `answer`."""

    def answer(self, text: str) -> str | None:
        return grading.extract_answer(text, style=style_of(after_thinking(text)))

    def gold(self, problem: Problem) -> str | None:
        return problem.answer

    def rewards(self, items: Sequence[tuple[Problem, str]], grader: grading.Grader) -> list[float]:
        """The rewards of `items`, in order; their answers are compared in the grader's mode."""
        return self._graded(items, grader)


class AnswerSet(AnswerTask):
    """A task with only a test split; `tasks/base.py` documents its methods.

    `path` is a file (`tasks/files.py` names the kinds), a folder with such a file called 'test', or
    the name of a `datasets` data set. Rows have strings under `fields`. `read` returns the question
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
        """Problems named after their row, such as 'test/17', with the bare answer as `answer`."""
        if split != "test":
            raise DataError(self.path, None, f"{self.name} is an evaluation set, without {split}")
        file = Path(self.path).expanduser()
        if is_file(file):
            rows = read_file(file, self._fields)
        else:
            rows = read_split(self.path, split, self._fields)

        def problem(i: int, row: dict[str, Any]) -> Problem:
            question, answer = self._read(row)
            return Problem(f"{split}/{i}", question, answer, columns=row)

        return problems_of(rows, problem, {})

    def solution(self, problem: Problem) -> str:
        """The answer in a box; no run trains on it, as there is no train split."""
        return f"\nThe answer is $\\boxed{{{DOLLAR.sub('', problem.answer)}}}$."


def style_of(response: str) -> Style:
    """The style of a response's answer: 'gsm8k' if it has '####' and no box, else 'math'.

    The answer is extracted in this style. A '####' with further lines below and no number after it
    is a Markdown heading and does not count.
    """
    _, marker, after = response.rpartition(MARKER)
    if not marker or "\\boxed" in response:
        return "math"
    after = after.strip()
    return "gsm8k" if "\n" not in after or MARKED.match(after) else "math"
