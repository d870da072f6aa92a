"""A task with a free order of steps: a sum is reduced, one sub-expression per line.

    a3+4 b7+1 c9-5=     the prompt: a sum of sub-expressions, each with a name
    b7+1=88             a line: a sub-expression, its value 8, and the sum so far, 8
    c9-5=42
    a3+4=79
    #### 9              the answer

Values are from 0 to 9, and only the last digit of a sum is written: 8 + 4 = 12 becomes 2. All lines
therefore have the same length, and a prompt may have any number of sub-expressions. Their order is
free, because all orders give the same sum. A wrong value or a wrong sum makes the answer wrong. The
reward depends on the answer alone, so one guess in ten is right.

The demonstrations reduce the k sub-expressions in a random order. Each of their values is wrong
with chance 1 - `RIGHT`^(1/k), independently, and the following sums include the error. All values
are therefore right with chance `RIGHT` for every k, and a model that imitates the demonstrations is
right about as often. The value of a state drops at the line where its solution went wrong.

`data.free_steps` is the number of sub-expressions minus one. It is at least 1, because too few
questions have one sub-expression. Without it the problems have 1 to 4 free steps in equal shares,
so that one start, trained on this mixture, serves every number.
"""

import re
import string

import numpy as np

from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.tasks.generated import GeneratedTask, numbers_of_free_steps, rng_of

FREE_STEPS = tuple(range(1, 5))  # numbers of free steps without `data.free_steps`, in equal shares
RANGE = (1, len(string.ascii_lowercase) - 1)  # names are letters
RIGHT = 0.27  # chance that all values of a demonstration are right

_SUB_EXPRESSION = re.compile(r"([a-z])(\d)([-+])(\d)")


def values_of(question: str) -> dict[str, int]:
    """{sub-expression with its name in front: its value}."""
    values = {}
    for name, left, sign, right in _SUB_EXPRESSION.findall(question):
        value = int(left) + int(right) if sign == "+" else int(left) - int(right)
        values[f"{name}{left}{sign}{right}"] = value
    return values


def reduction(values: dict[str, int]) -> str:
    """The response with one line for each item of `values`, in the order of the dict."""
    total, lines = 0, []
    for named, value in values.items():
        total = (total + value) % 10
        lines.append(f"\n{named}={value}{total}")
    return "".join(lines) + f"\n#### {total}"


class FreeOrder(GeneratedTask):
    """The task that the module's docstring describes; `tasks/base.py` documents the methods."""

    name = "free_order"

    def draw(self, rng: np.random.Generator, free_steps: int) -> tuple[str, str]:
        """(a sum, its reduction). Sub-expressions have two digits, and one digit as their value."""
        parts = []
        for name in string.ascii_lowercase[: free_steps + 1]:
            smaller, larger = sorted(int(digit) for digit in rng.integers(10, size=2))
            is_sum = rng.integers(2)
            parts.append(
                f"{name}{smaller}+{larger - smaller}" if is_sum else f"{name}{larger}-{smaller}"
            )
        question = " ".join(parts)
        return question, reduction(values_of(question))

    def prompt(self, problem: Problem) -> str:
        return f"{problem.question}="

    def solution(self, problem: Problem) -> str:
        """A demonstration in random order, with all values right with chance `RIGHT`."""
        rng = rng_of(problem.question)
        values = values_of(problem.question)
        order = [str(named) for named in rng.permutation(list(values))]
        for named in order:
            if rng.random() >= RIGHT ** (1 / len(order)):
                values[named] = (values[named] + int(rng.integers(1, 10))) % 10
        return reduction({named: values[named] for named in order})


def make(data: DataConfig) -> FreeOrder:
    return FreeOrder(numbers_of_free_steps(data, FREE_STEPS, *RANGE))
