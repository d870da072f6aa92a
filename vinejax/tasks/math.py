r"""MATH: competition problems with a worked solution whose answer is in \boxed{}.

Prompt, response format and sizes of the splits are those of VinePPO's code (McGill-NLP/VinePPO,
`src/treetune/tasks/math.py` and `configs/tasks/math_inplace_no_answer_prefix.jsonnet`; it has two
formats for the warm-up, here is the one without a newline at the end). The data may not be shipped:
`data.path` names a copy, in either of its two divisions (see `divide`).

Differences: the held-out rows are chosen by VineJAX, because VinePPO's code ships its splits as
files; and in mode 'strict' the correct answer is the last box of the solution alone.
"""

from functools import cached_property
from typing import Any

from vinejax import grading
from vinejax.core.errors import ConfigError
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.tasks.answers import boxed_answer
from vinejax.tasks.base import ReferenceTask, Split
from vinejax.tasks.read_rows import check_any_left, hash_shuffled, hold_out, problems_of, read_split

FIELDS = ("problem", "solution")
TEST_PORTION = 500 / 12500  # share of all rows
VALIDATION_PORTION = 500 / 12000  # share of the rows that are not for the test
# A test file with a larger share of all rows than this is from the division by the data's authors.
LARGE_TEST = 0.25


def make(data: DataConfig) -> "MATH":
    if not data.path:
        rule = "MATH is not shipped: name a folder with train.jsonl and test.jsonl, or a data set"
        raise ConfigError("data.path", rule, "''")
    return MATH(data.path)


class MATH(ReferenceTask):
    """MATH as a task; `tasks/base.py` documents its methods.

    `path` is a folder with train and test files (`split_files` of `tasks/read_rows.py`), or the
    name of a `datasets` data set; rows have `problem` and `solution`, and may have a `unique_id`.
    """

    name = "math"

    def load(self, split: Split) -> list[Problem]:
        """Problems named by `unique_id` or row, 'train/17'; `answer` is the whole solution."""
        problems = self._splits[split]
        check_any_left(problems, f"{self.path} {split}")
        return problems

    @cached_property
    def _splits(self) -> dict[Split, list[Problem]]:
        places: dict[str, str] = {}
        train, test = (self._read(source, places) for source in ("train", "test"))
        splits = divide(train, test)
        if moved := len(test) - len(splits["test"]):
            print(f"{self.name}: {moved} of the {len(test)} test rows are used for training")
        return splits

    def _read(self, source: str, places: dict[str, str]) -> list[Problem]:
        def problem(i: int, row: dict[str, Any]) -> Problem:
            unique = row.get("unique_id")
            name = unique if isinstance(unique, str) and unique else f"{source}/{i}"
            return Problem(name, row["problem"], row["solution"], row)

        return problems_of(read_split(self.path, source, FIELDS), problem, places)

    def solution(self, problem: Problem) -> str:
        return f"\n{problem.answer}"

    def answer(self, text: str) -> str | None:
        return grading.extract_answer(text, style="math")

    def gold(self, problem: Problem) -> str | None:
        return boxed_answer(problem.answer)


def divide(train: list[Problem], test: list[Problem]) -> dict[Split, list[Problem]]:
    """The three splits, always the same, from a copy's train and test rows.

    12,000/500, the division of PRM800K that VinePPO's code uses, gives 11,500, 500 and 500. Of
    7,500/5,000, the authors' division, 500 of the 5,000 stay the test split and the others move to
    train; these 500 are not PRM800K's, whose list is not in the data, so results do not compare
    exactly. Other sizes are divided in proportion, with at least one problem each: 1 in 24 training
    rows is for validation, and a test file with over a quarter of all rows keeps a 25th of them.
    """
    total = len(train) + len(test)
    if len(test) > LARGE_TEST * total:
        held_out = max(1, round(TEST_PORTION * total))
        drawn = hash_shuffled(test)
        train, test = train + drawn[held_out:], drawn[:held_out]
    validation, train = hold_out(train, VALIDATION_PORTION)
    return {"train": train, "validation": validation, "test": test}
