"""Generated programs of four lines, the smallest task whose rewards come from running code.

    times 7, minus 3    the prompt
    x=int(input())      the response, a program that is tested with two inputs
    x*=7
    x-=3
    print(x)

In a demonstration each of the two middle lines has a wrong operator with probability p = `WRONG`.
So (1 - p)² of the demonstrations are right. Tests, sandbox, steps and rewards are those of the task
`code`.
"""

import itertools
import json

from vinejax.contrib.code.task import Code
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.tasks.base import Split
from vinejax.tasks.generated import CharacterTask, rng_of, split_of

WORDS = {"plus": "+", "minus": "-", "times": "*"}
NUMBERS = range(1, 10)
INPUTS = (4, 17)
WRONG = 0.3  # probability of a wrong operator in a line of a demonstration


def program(symbols: list[str], numbers: list[str]) -> str:
    """The program with these operators and numbers."""
    lines = [f"x{a}={n}" for a, n in zip(symbols, numbers, strict=True)]
    return "\n".join(["x=int(input())", *lines, "print(x)"])


def answer_to(x: int, symbols: list[str], numbers: list[str]) -> int:
    """The number that the program prints for the input `x`."""
    for symbol, number in zip(symbols, map(int, numbers), strict=True):
        x = {"+": x + number, "-": x - number, "*": x * number}[symbol]
    return x


class ProgramsTask(Code, CharacterTask):
    """The task of the module's docstring; `tasks/base.py` documents the methods."""

    name = "programs"
    reads = ()

    def __init__(self, data: DataConfig):
        super().__init__(data)
        self._begins_inside = True  # because a response is a program without a fence

    def load(self, split: Split) -> list[Problem]:
        parts = [f"{word} {number}" for word in WORDS for number in NUMBERS]
        questions = [f"{a}, {b}" for a, b in itertools.product(parts, parts)]
        return [self._problem(q) for q in questions if split_of(q) == split]

    def _problem(self, question: str) -> Problem:
        symbols, numbers = _read(question)
        tests = [[str(x), str(answer_to(x, symbols, numbers))] for x in INPUTS]
        return Problem(question, question, json.dumps({"stdin": tests}))

    def prompt(self, problem: Problem) -> str:
        return f"{problem.question}\n"

    def solution(self, problem: Problem) -> str:
        """A program for demonstration. Each operator in it is wrong with probability `WRONG`."""
        rng, (symbols, numbers) = rng_of(problem.question), _read(problem.question)
        for i, symbol in enumerate(symbols):
            others = [x for x in WORDS.values() if x != symbol]
            symbols[i] = others[rng.integers(2)] if rng.random() < WRONG else symbol
        return program(symbols, numbers)


def _read(question: str) -> tuple[list[str], list[str]]:
    """(operators, numbers) of the program that a question asks for."""
    parts = [part.split() for part in question.split(", ")]
    return [WORDS[word] for word, _ in parts], [number for _, number in parts]


make = ProgramsTask
