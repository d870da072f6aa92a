"""GSM8K: grade-school word problems with a worked solution and an integer answer.

Prompt, response format and answer rule are the reference's (`src/treetune/tasks/gsm8k.py` of
McGill-NLP/VinePPO). Where we depart: commas are removed from the gold too (the reference forgets
it, so that a gold such as '1,000' can never be matched); the answer is compared with the text
after the LAST '####' on both sides; and which 373 of the training rows are the validation set is
our own draw, because the reference ships its split as a file.
"""

import re

from vinejax.config import DataConfig
from vinejax.errors import DataError
from vinejax.tasks.base import Split, reference_prompt
from vinejax.tasks.load import mixed, read_split
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

    `path` is a folder with train and test files (`tasks/load.py`) or else the name of a `datasets`
    data set.
    """

    def __init__(self, path: str):
        self.name = "gsm8k"
        self.path = path

    def load(self, split: Split) -> list[Problem]:
        """Problems named after their row, 'train/17'; `answer` is the whole worked answer."""
        source = FILES[split]
        problems = [
            Problem(f"{source}/{i}", row["question"].strip(), row["answer"])
            for i, row in enumerate(read_split(self.path, source, FIELDS, "main"))
        ]
        for problem in problems:
            if not self.answer(problem.answer):
                message = f"{problem.id} has no answer after '{MARKER}'"
                raise DataError(self.path, None, message)
        return divide(problems, split) if source == "train" else problems

    def prompt(self, problem: Problem) -> str:
        return reference_prompt(problem.question)

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
    drawn = mixed(problems)
    size = max(1, round(len(drawn) * VALIDATION_PORTION))
    return drawn[:size] if split == "validation" else drawn[size:]
