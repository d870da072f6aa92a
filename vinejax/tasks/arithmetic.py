"""The embedded task: chains of additions, subtractions and products, worked one operation a line.

    47+38-29=            the prompt
    47+38=85             one step a line
    85-29=56
    #### 56              the answer

Every problem is generated, nothing is downloaded. A problem's split is a hash of its question, so
that the three splits cannot share one. Difficulty is the number of operations.
"""

import hashlib
import pathlib
import re
from typing import TYPE_CHECKING

import numpy as np

from vinejax.config import DataConfig
from vinejax.tasks.steps import split_steps
from vinejax.types import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SIZES = {"train": 6000, "validation": 256, "test": 512}
OPERATIONS = (2, 3, 4)  # difficulties, in equal shares
LARGEST = 20  # every operand and every intermediate result lies in 0 .. LARGEST
TOKENIZER = pathlib.Path(__file__).parent / "arithmetic_tokenizer"

_ANSWER = re.compile(r"#### (-?\d+)")
_OPERATION = re.compile(r"(\d+)([-+*])(\d+)")


def split_of(question: str) -> str:
    """The split of a question: a tenth each for validation and test."""
    digit = hashlib.blake2b(question.encode()).digest()[0] % 10
    return {0: "test", 1: "validation"}.get(digit, "train")


def _apply(left: int, sign: str, right: int) -> int:
    return left + right if sign == "+" else left - right if sign == "-" else left * right


def generate(rng: np.random.Generator, operations: int) -> str:
    """One question. Evaluated from left to right, whatever the signs: the lines show the order."""
    value = int(rng.integers(LARGEST + 1))
    question = str(value)
    for _ in range(operations):
        while True:
            sign = "+-*"[rng.integers(3)]
            right = int(rng.integers(2, 10) if sign == "*" else rng.integers(1, LARGEST + 1))
            result = _apply(value, sign, right)
            if 0 <= result <= LARGEST:
                break
        question, value = f"{question}{sign}{right}", result
    return question


def worked(question: str) -> str:
    """The solution of a question, one operation a line and the answer last."""
    first, *rest = re.split(r"([-+*])", question)
    value, lines = int(first), []
    for sign, right in zip(rest[::2], rest[1::2], strict=True):
        result = _apply(value, sign, int(right))
        lines.append(f"{value}{sign}{right}={result}")
        value = result
    return "\n".join([*lines, f"#### {value}"])


class Arithmetic:
    """See the module's docstring."""

    name = "arithmetic"

    def load(self, split: str) -> list[Problem]:
        rng = np.random.default_rng(["train", "validation", "test"].index(split))
        problems: dict[str, Problem] = {}
        while len(problems) < SIZES[split]:
            question = generate(rng, OPERATIONS[len(problems) % len(OPERATIONS)])
            if split_of(question) == split and question not in problems:
                name = f"{split}/{len(problems)}"
                problems[question] = Problem(name, question, worked(question))
        return list(problems.values())

    def prompt(self, problem: Problem) -> str:
        return f"{problem.question}="

    def solution(self, problem: Problem) -> str:
        return f"\n{problem.answer}"

    def split(self, text: str) -> list[int]:
        return split_steps(text, style="gsm8k")

    def answer(self, text: str) -> str | None:
        found = _ANSWER.findall(text)
        return found[-1] if found else None

    def reward(self, problem: Problem, response: str) -> float:
        return float(self.answer(response) == self.answer(problem.answer))

    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The shipped character-level tokenizer, for models that start from nothing."""
        from vinejax.model.weights import load_tokenizer

        return load_tokenizer(TOKENIZER)


def make(data: DataConfig) -> Arithmetic:
    return Arithmetic()
