r"""MATH: competition problems with a worked solution whose answer is in \boxed{}.

The prompt, the response format and the sizes of the splits are those of VinePPO's code
(McGill-NLP/VinePPO, `src/treetune/tasks/math.py` and
`configs/tasks/math_inplace_no_answer_prefix.jsonnet`). Of that code's two formats for the
warm-up, VineJAX has the one without a newline at the end. The data may not be shipped, so
`data.path` names a copy, in either of its two divisions (see `divide`).

There are two differences. The held-out rows are VineJAX's own choice, because VinePPO's code has
its choice only in data files. In mode 'strict' only the solution's last box is the correct answer.
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
VALIDATION_PORTION = 500 / 12000  # share of the rows outside the test split
# Share of all rows above which a test file belongs to the division by the data's authors
LARGE_TEST = 0.25


def make(data: DataConfig) -> "MATH":
    if not data.path:
        message = (
            "MATH is not shipped: name a folder with train.jsonl and test.jsonl, or a data set"
        )
        raise ConfigError("data.path", message, "''")
    return MATH(data.path)


class MATH(ReferenceTask):
    """MATH as a task; `tasks/base.py` documents its methods.

    `path` is a folder with train and test files (`split_files` of `tasks/read_rows.py`), or the
    name of a `datasets` data set; rows have `problem` and `solution`, and may have a `unique_id`.
    """

    name = "math"

    def load(self, split: Split) -> list[Problem]:
        """Problems with the whole solution as `answer`.

        A problem is named by its `unique_id` or, without one, by its row, such as 'train/17'.
        """
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

    The division of PRM800K, 12,000/500, which VinePPO's code uses, gives 11,500, 500 and 500
    problems. The original division by the authors of MATH, 7,500/5,000, gives the same sizes: 500
    of the 5,000 test rows stay the test split and the others move to train. These 500 are not
    PRM800K's, because the data does not list those, so results are not exactly comparable.

    Other sizes are divided in proportion, with at least one problem per split. One in 24 training
    rows is for validation. If a test file has over a quarter of all rows, a 25th of all rows stays
    the test split and its other rows move to train.
    """
    total = len(train) + len(test)
    if len(test) > LARGE_TEST * total:
        held_out = max(1, round(TEST_PORTION * total))
        shuffled = hash_shuffled(test)
        train, test = train + shuffled[held_out:], shuffled[:held_out]
    validation, train = hold_out(train, VALIDATION_PORTION)
    return {"train": train, "validation": validation, "test": test}
