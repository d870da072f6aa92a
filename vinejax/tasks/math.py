r"""MATH: competition problems with a worked solution whose answer is in \boxed{}.

Prompt, response format and sizes of the splits are the reference's (McGill-NLP/VinePPO,
`src/treetune/tasks/math.py` and `configs/tasks/math_inplace_no_answer_prefix.jsonnet`; of its two
formats for the warm-up the one without a newline at the end). The data is not ours to ship:
`data.path` names a copy, in either of its two divisions (see `divide`).

Where we depart: which rows are held out is our own draw, because the reference ships its splits as
files; and a problem whose solution boxes nothing is not trained on, since its reward is always 0.
"""

from functools import cached_property
from typing import Any, Literal

from vinejax.config import DataConfig
from vinejax.errors import ConfigError, DataError
from vinejax.tasks.base import Split, reference_prompt
from vinejax.tasks.load import mixed, read_split
from vinejax.tasks.steps import split_steps
from vinejax.types import Problem

FIELDS = ("problem", "solution")
TEST_PORTION = 500 / 12500  # of all rows
VALIDATION_PORTION = 500 / 12000  # of the rows that are not for the test
# A test file with a larger share of all rows than this is from the division by the data's authors.
LARGE_TEST = 0.25
LISTED = 20  # ids in a printed line

Mode = Literal["strict", "reference"]


def make(data: DataConfig) -> "MATH":
    if not data.path:
        rule = "MATH is not shipped: name a folder with train.jsonl and test.jsonl, or a data set"
        raise ConfigError("data.path", rule, "''")
    return MATH(data.path)


class MATH:
    """The task; see `tasks/base.py` for what its methods promise.

    `path` is a folder with train and test files (`tasks/load.py`) or else the name of a `datasets`
    data set; rows have `problem` and `solution`, and may have a `unique_id`. `mode` is how
    responses are graded; with `keep_unboxed` problems without a boxed answer are trained on too.
    """

    def __init__(self, path: str, mode: Mode = "strict", keep_unboxed: bool = False):
        self.name = "math"
        self.path = path
        self.mode: Mode = mode
        self.keep_unboxed = keep_unboxed

    def load(self, split: Split) -> list[Problem]:
        """Problems named by `unique_id` or their row, 'train/17'; `answer` is the whole solution.

        Prints one line where solutions box no answer: such problems stay in validation and test,
        whose sizes are to be those of the splits, and are left out of train.
        """
        problems = self._splits[split]
        unboxed = [p.id for p in problems if boxed_answer(p.answer) is None]
        leave_out = split == "train" and not self.keep_unboxed
        if unboxed:
            ids = ", ".join(unboxed[:LISTED]) + (", ..." if len(unboxed) > LISTED else "")
            fate = "left out" if leave_out else "kept"
            count = f"{len(unboxed)} of {len(problems)} {split} problems"
            print(f"{self.name}: {count} have no boxed answer and are {fate}: {ids}")
        if leave_out:
            problems = [p for p in problems if p.id not in set(unboxed)]
        if not problems:
            raise DataError(self.path, None, f"no problem is left for {split}")
        return problems

    @cached_property
    def _splits(self) -> dict[Split, list[Problem]]:
        train, test = (self._read(source) for source in ("train", "test"))
        splits = divide(train, test)
        if moved := len(test) - len(splits["test"]):
            print(f"{self.name}: {moved} of the {len(test)} test rows are used for training")
        return splits

    def _read(self, source: str) -> list[Problem]:
        rows = read_split(self.path, source, FIELDS)
        return [
            Problem(_id(row, f"{source}/{i}"), row["problem"], row["solution"])
            for i, row in enumerate(rows)
        ]

    def prompt(self, problem: Problem) -> str:
        return reference_prompt(problem.question)

    def solution(self, problem: Problem) -> str:
        return f"\n{problem.answer}"

    def split(self, text: str) -> list[int]:
        return split_steps(text, "math")

    def answer(self, text: str) -> str | None:
        from vinejax.tasks.grading import extract_answer  # only where something is graded

        return extract_answer(text, style="math")

    def reward(self, problem: Problem, response: str) -> float:
        """1.0 for a response whose answer is the gold's, else 0.0.

        'strict' compares with the last boxed answer of the solution; 'reference' hands over the
        solution itself, out of which the reference's rules extract a list of answers.
        """
        from vinejax.tasks.grading import grade_response

        gold = problem.answer if self.mode == "reference" else boxed_answer(problem.answer)
        if gold is None:
            return 0.0
        question = problem.question
        return float(grade_response(response, gold, self.mode, style="math", problem=question))


def _id(row: dict[str, Any], name: str) -> str:
    unique = row.get("unique_id")
    return unique if isinstance(unique, str) and unique else name


def boxed_answer(solution: str) -> str | None:
    r"""What the last \boxed{...} or \boxed 5 of a solution holds.

    None if there is no box, or nothing in it, or if it is never closed.
    """
    from vinejax.tasks.grading.latex import last_boxed  # as the grader reads a response's

    return (last_boxed(solution) or "").strip() or None


def divide(train: list[Problem], test: list[Problem]) -> dict[Split, list[Problem]]:
    """The three splits, always the same ones, from a copy's train and test rows.

    12,000/500, the division of PRM800K that the reference uses: 11,500, 500 and 500. 7,500/5,000,
    the authors': of the 5,000 we hold out 500 for the test and move the rest to train; these 500
    are not those of PRM800K, whose list is not in the data, so results do not compare exactly.
    Other sizes go by proportion, at least one problem each: 1 in 24 of the training rows is for
    validation, and of a test file with over a quarter of all rows a 25th of all rows is kept.
    """
    total = len(train) + len(test)
    if len(test) > LARGE_TEST * total:
        held_out = max(1, round(TEST_PORTION * total))
        drawn = mixed(test)
        train, test = train + drawn[held_out:], drawn[:held_out]
    drawn = mixed(train)
    size = max(1, round(VALIDATION_PORTION * len(drawn)))
    return {"train": drawn[size:], "validation": drawn[:size], "test": test}
