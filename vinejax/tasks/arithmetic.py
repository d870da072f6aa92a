"""The embedded task: chains of additions, subtractions and products, one operation per line.

    7+8-4-3=            the prompt
    7+8=15              one step per line
    15-4=11
    11-3=8
    #### 8              the answer

Nothing is downloaded. The difficulty is the number of operations.

The demonstrations of the supervised warm-up are hasty: before any line but the last they may stop
showing work and write down the answer. That answer is right, but the model cannot do several
operations at once, so it often fails when it imitates such demonstrations. Reinforcement learning
has to discover that working line by line pays. The value of a step shows where a solution gave up.
"""

import pathlib
import re

import numpy as np

from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.tasks.generated import GeneratedTask, share_of

OPERATIONS = (2, 3, 4)  # difficulties, in equal shares
HASTE = 0.5  # chance, before each line, that a demonstration skips the rest of its work
LARGEST = 20  # maximum of operands and intermediate results, which are at least 0
TOKENIZER = pathlib.Path(__file__).parent / "arithmetic_tokenizer"

_ANSWER = re.compile(r"#### (-?\d+)")


def _apply(left: int, sign: str, right: int) -> int:
    return left + right if sign == "+" else left - right if sign == "-" else left * right


def generate(rng: np.random.Generator, operations: int) -> str:
    """A random question, whose operations apply from left to right, without precedence."""
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
    """The solution of a question: one operation per line, and the answer last."""
    first, *operations = re.split(r"([-+*])", question)
    value, lines = int(first), []
    for sign, right in zip(operations[::2], operations[1::2], strict=True):
        result = _apply(value, sign, int(right))
        lines.append(f"{value}{sign}{right}={result}")
        value = result
    return "\n".join([*lines, f"#### {value}"])


class Arithmetic(GeneratedTask):
    """The task that the module's docstring describes; `tasks/base.py` documents the methods."""

    name = "arithmetic"
    vocabulary = TOKENIZER

    def __init__(self) -> None:
        """A task without free steps, so that `data.free_steps` does not apply."""

    @property
    def difficulties(self) -> tuple[int, ...]:
        return OPERATIONS

    def draw(self, rng: np.random.Generator, difficulty: int) -> tuple[str, str]:
        question = generate(rng, difficulty)
        return question, worked(question)

    def prompt(self, problem: Problem) -> str:
        return f"{problem.question}="

    def solution(self, problem: Problem) -> str:
        """A demonstration: the worked solution, or a hasty one that skips the last lines."""
        *lines, answer = problem.answer.split("\n")
        for i in range(len(lines) - 1):
            if share_of(f"{problem.question} {i}") < HASTE:
                lines = lines[:i]
                break
        return "".join(f"\n{line}" for line in [*lines, answer])

    def answer(self, text: str) -> str | None:
        answers = _ANSWER.findall(text)
        return answers[-1] if answers else None


def make(data: DataConfig) -> Arithmetic:
    return Arithmetic()
