"""GSM8K: grade-school word problems with a worked solution and an integer answer.

Prompt, response format and answer rule are the reference's (`src/treetune/tasks/gsm8k.py` of
McGill-NLP/VinePPO). Where we depart: commas are removed from the gold too (the reference forgets
it, so that a gold such as '1,000' can never be matched); the answer is compared with the text
after the LAST '####' on both sides; and which 373 of the training rows are the validation set is
our own draw, because the reference ships its split as a file.
"""

import hashlib
import re
from pathlib import Path

from vinejax.config import DataConfig
from vinejax.errors import DataError
from vinejax.tasks.base import Split, check_fields, read_jsonl
from vinejax.tasks.steps import split_steps
from vinejax.types import Problem

HUB_NAME = "openai/gsm8k"
FILES: dict[Split, str] = {"train": "train", "validation": "train", "test": "test"}
FIELDS = ("question", "answer")
MARKER = "####"
CALCULATOR = re.compile("<<.*?>>", re.DOTALL)
# 7,473 rows become 7,100 and 373: the reference's 0.05253521 is 373 / 7,100.
VALIDATION_PORTION = 373 / 7473


def make(data: DataConfig) -> "GSM8K":
    return GSM8K(data.path or HUB_NAME)


class GSM8K:
    """The task; see `tasks/base.py` for what its methods promise.

    `path` is a folder with train.jsonl and test.jsonl, or else the name of a `datasets` data set.
    """

    def __init__(self, path: str):
        self.name = "gsm8k"
        self.path = path

    def load(self, split: Split) -> list[Problem]:
        """Problems named after their row, 'train/17'; `answer` is the whole worked answer."""
        source = FILES[split]
        problems = [
            Problem(f"{source}/{i}", row["question"].strip(), row["answer"])
            for i, row in enumerate(read_rows(self.path, source))
        ]
        for problem in problems:
            if not self.answer(problem.answer):
                message = f"{problem.id} has no answer after '{MARKER}'"
                raise DataError(self.path, None, message)
        return divide(problems, split) if source == "train" else problems

    def prompt(self, problem: Problem) -> str:
        return f"[MATH_TASK] Problem:\n{problem.question}\n\nSolution:"

    def solution(self, problem: Problem) -> str:
        return f"\n{CALCULATOR.sub('', problem.answer)}\n"

    def split(self, text: str) -> list[int]:
        return split_steps(text, "gsm8k")

    def answer(self, text: str) -> str | None:
        _, marker, answer = text.rpartition(MARKER)
        return answer.strip() if marker else None

    def reward(self, problem: Problem, response: str) -> float:
        """1.0 for the gold's digits, 0.0 for anything else or no '####'.

        A comparison of strings, as the reference's: '72.0', '$72' and '72 clips' are wrong.
        """
        given, gold = self.answer(response), self.answer(problem.answer)
        if given is None or gold is None:
            return 0.0
        return float(normalize(given) == normalize(gold))


def normalize(answer: str) -> str:
    return answer.strip().replace(",", "").lower()


def divide(problems: list[Problem], split: Split) -> list[Problem]:
    """The train or validation part of the training rows, always the same one, in mixed order."""
    # Sorted by a hash and not shuffled by a library, whose stream may change with its version.
    mixed = sorted(problems, key=lambda p: hashlib.blake2b(p.id.encode()).digest())
    size = max(1, round(len(mixed) * VALIDATION_PORTION))
    return mixed[:size] if split == "validation" else mixed[size:]


def read_rows(path: str, source: str) -> list[dict]:
    """Rows of <path>/<source>.jsonl, or of the data set `path` where no such path exists."""
    folder = Path(path).expanduser()
    if folder.exists():
        return read_jsonl(folder / f"{source}.jsonl", FIELDS)
    try:
        import datasets
    except ImportError:
        message = "no such folder; to load it as a data set, pip install 'vinejax[hub]'"
        raise DataError(path, None, message) from None
    try:
        rows = [dict(row) for row in datasets.load_dataset(path, "main", split=source)]
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DataError(path, None, f"no such folder, and no such data set: {reason}") from None
    for number, row in enumerate(rows, start=1):
        check_fields(row, FIELDS, f"{path} {source}", number)
    return rows
