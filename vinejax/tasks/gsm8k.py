"""GSM8K: grade-school word problems with a worked solution and an integer answer.

The prompt, the response format and, with grader.mode='reference', the comparison of answers are
those of VinePPO's code (`src/treetune/tasks/gsm8k.py` of McGill-NLP/VinePPO). That code
compares strings after it has removed the commas of the prediction.

There are two differences. Mode 'strict' compares answers as numbers, with the units and separators
that people write. The 373 training rows of the validation split are VineJAX's own choice, because
VinePPO's code has its choice only in a data file, which VineJAX does not ship.
"""

import re
from typing import Any

from vinejax import grading
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.grading.extract import MARKER, after_thinking, reference_gsm8k
from vinejax.tasks.base import ReferenceTask, Split
from vinejax.tasks.read_rows import check_any_left, hold_out, problems_of, read_split

HUB_NAME = "openai/gsm8k"
FILES: dict[Split, str] = {"train": "train", "validation": "train", "test": "test"}
FIELDS = ("question", "answer")
CALCULATOR = re.compile("<<.*?>>", re.DOTALL)
# 7,473 rows become 7,100 and 373: VinePPO's 0.05253521 is 373 / 7,100.
VALIDATION_PORTION = 373 / 7473


def make(data: DataConfig) -> "GSM8K":
    return GSM8K(data.path or HUB_NAME)


class GSM8K(ReferenceTask):
    """GSM8K as a task; `tasks/base.py` documents its methods.

    `path` is a folder with train and test files (`split_files` of `tasks/read_rows.py`), or the
    name of a `datasets` data set.
    """

    name = "gsm8k"
    style = "gsm8k"

    def load(self, split: Split) -> list[Problem]:
        """Problems named after their row, such as 'train/17', with the solution as `answer`."""
        source = FILES[split]

        def problem(i: int, row: dict[str, Any]) -> Problem:
            if not self.answer(row["answer"]):
                raise ValueError(f"no answer after '{MARKER}'")
            return Problem(f"{source}/{i}", row["question"].strip(), row["answer"], row)

        rows = read_split(self.path, source, FIELDS, "main")
        problems = problems_of(rows, problem, {})
        if source == "train":
            validation, train = hold_out(problems, VALIDATION_PORTION)
            problems = validation if split == "validation" else train
        check_any_left(problems, rows.file)
        return problems

    def solution(self, problem: Problem) -> str:
        return f"\n{CALCULATOR.sub('', problem.answer)}\n"

    def answer(self, text: str) -> str | None:
        return reference_gsm8k(after_thinking(text))

    def gold(self, problem: Problem) -> str | None:
        return self.answer(problem.answer)

    def strict_answer(self, response: str) -> str | None:
        """The first line with text after the last '####' behind the thinking; None without one.

        Mode 'strict' reads '72.0', '$72' and '72 clips' as 72. Mode 'reference' requires equal text
        after the '####', except for commas in the response.
        """
        said = after_thinking(response)
        return grading.extract_answer(said, style="gsm8k") if MARKER in said else None
