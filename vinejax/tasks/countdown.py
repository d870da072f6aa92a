"""The countdown game: an expression of the given numbers that equals a target.

    16,7,9=18:          the prompt: using 16, 7 and 9, make 18
    16-7=9              one operation per line
    9+9=18
    #### (16-7)+9       the answer: an expression that uses each number exactly once

The rules are those of Jiayi-Pan/Countdown-Tasks-3to4 as TinyZero uses it
(examples/data_preprocess/countdown.py and verl/utils/reward_score/countdown.py of
Jiayi-Pan/TinyZero): three or four numbers, each used exactly once, with +, -, *, / and
parentheses, and any work before the answer. Rankings of methods can be compared with published
ones. Accuracies cannot, because the task departs from TinyZero's:

- The problems are generated here, not read from the data set. Numbers and targets are from 1 to 20,
  because models of 80,000 parameters must know their sums. Every problem has a solution whose
  operations give integers from 1 to 99.
- The prompt is written in characters that a small model can read, and the answer stands after
  `#### `, not between `<answer>` tags.
- The reward is 1 or 0. TinyZero gives 0.1 for an answer in the right form.
- Values are exact fractions, compared exactly. TinyZero compares floats, which may differ by 1e-5.
  Its check of characters also accepts `**`, `//` and decimal points, which are wrong here.

Every step of the game matters. `data.free_steps` is the number of given numbers minus two. Without
it problems have three or four numbers in equal shares, as in the data set.
"""

import ast
import operator
import random
import re
from fractions import Fraction

import numpy as np

from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.tasks.generated import GeneratedTask, numbers_of_free_steps

FREE_STEPS = (1, 2)  # three or four numbers
RANGE = (1, 2)  # two numbers give too few questions, five hardly ever a small target
LARGEST = 20  # maximum of given numbers and targets
LARGEST_BETWEEN = 99  # maximum of an operation's result
OPERATIONS = "+-*/"

_EXPRESSION = re.compile(r"[-+*/() 0-9]{1,128}")  # short enough for Python's parser, however deep
_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def evaluate(expression: str) -> tuple[Fraction, list[int]] | None:
    """(the value, the numbers in order) of an expression of natural numbers, + - * / and ().

    None if the text is no such expression, has more than 128 characters, or divides by zero. The
    text is parsed and never executed. A sign may stand before a number or a parenthesis, as in
    Python.
    """
    if not _EXPRESSION.fullmatch(expression):
        return None
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
        numbers = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        return _value(tree), [int(x) for x in numbers]  # pyright: ignore[reportArgumentType]
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _value(tree: ast.expr) -> Fraction:
    """The value of a parsed expression of numbers, + - * /, and signs.

    Raises ValueError for any other expression, ZeroDivisionError for a division by zero.
    """
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATIONS:
        return _OPERATIONS[type(tree.op)](_value(tree.left), _value(tree.right))
    if isinstance(tree, ast.UnaryOp) and type(tree.op) in _OPERATIONS:
        return _OPERATIONS[type(tree.op)](_value(tree.operand))
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return Fraction(tree.value)
    raise ValueError(f"not a part of an expression: {type(tree).__name__}")


def solves(question: str, expression: str) -> bool:
    """Whether the expression uses each number of the question once and equals its target."""
    numbers, target = question.split("=")
    evaluated = evaluate(expression)
    if evaluated is None:
        return False
    value, used = evaluated
    return value == int(target) and sorted(used) == sorted(map(int, numbers.split(",")))


def _result(left: int, sign: str, right: int) -> int | None:
    """The result of an operation if it is an integer from 1 to `LARGEST_BETWEEN`, else None."""
    if sign == "/":
        return None if left % right else left // right
    value = {"+": left + right, "-": left - right, "*": left * right}[sign]
    return value if 1 <= value <= LARGEST_BETWEEN else None


def combine(rng: random.Random, numbers: list[int]) -> tuple[int, list[str], str] | None:
    """A random combination of all numbers: (its value, a line per operation, the expression).

    None if an operation gives no integer from 1 to `LARGEST_BETWEEN`.
    """
    pool = [(number, str(number)) for number in numbers]
    lines = []
    while len(pool) > 1:
        (left, left_text), (right, right_text) = (pool.pop(rng.randrange(len(pool))) for _ in "ab")
        sign = rng.choice(OPERATIONS)
        value = _result(left, sign, right)
        if value is None:
            return None
        lines.append(f"{left}{sign}{right}={value}")
        expression = f"{left_text}{sign}{right_text}"
        pool.append((value, f"({expression})" if pool else expression))
    return pool[0][0], lines, pool[0][1]


class Countdown(GeneratedTask):
    """The task that the module's docstring describes; `tasks/base.py` documents the methods."""

    name = "countdown"

    def draw(self, rng: np.random.Generator, free_steps: int) -> tuple[str, str]:
        choices = random.Random(int(rng.integers(2**63)))  # faster than NumPy for many attempts
        while True:
            numbers = [choices.randint(1, LARGEST) for _ in range(free_steps + 2)]
            combined = combine(choices, numbers)
            if combined and combined[0] <= LARGEST:
                value, lines, expression = combined
                question = f"{','.join(map(str, numbers))}={value}"
                return question, "\n".join([*lines, f"#### {expression}"])

    def prompt(self, problem: Problem) -> str:
        return f"{problem.question}:"

    def solution(self, problem: Problem) -> str:
        """A demonstration: the right operations, without a search for them."""
        return f"\n{problem.answer}"

    def reward(self, problem: Problem, response: str) -> float:
        """1 if the answer solves the problem, whatever work precedes it, else 0."""
        return float(solves(problem.question, self.answer(response) or ""))


def make(data: DataConfig) -> Countdown:
    return Countdown(numbers_of_free_steps(data, FREE_STEPS, *RANGE))
