"""A task whose values are known: lines that do not matter, and two forks that decide.

    7318bba:            the prompt: a serial number, and the lengths of three sections
    b<                  a free line: a letter that counts down to a, and either side
    a<
    .>                  the first fork, a line with a dot: > is right, < is wrong
    b>
    a<
    .<                  the second fork: < is right, > is wrong
    a>
    #### ><             the answer: both sides

The number of free lines of a section is the place of its letter in the alphabet, 0 for a dot. The
sides of free lines decide nothing. The serial number decides nothing either; it only makes
questions differ. A response is right if it has every line that the prompt demands and both forks
are right, whatever the sides of its free lines. Responses without the free lines are wrong.
Otherwise a policy could earn the reward without the free steps that the task is about.

Free lines and forks are written with the same two symbols, so they share weights of the policy. If
an estimator gives every token of a solution the same credit, the free lines move these weights at
random, which hides the two tokens that matter. docs/results.md has the consequences.

After a wrong side no response can be right any more: that is a dead end. There the demonstrations
go on with lines such as `!<`, give no answer, and end only after `DEAD_END` characters. That is
beyond the token budget of a run, so a model trained on them runs into its length limit.

The demonstrations take the right side of each fork with chance p = `RIGHT`, independently. The
value of a state of their policy is therefore known exactly; see `value`. The number of free lines
is `data.free_steps`. Without it the problems have 0 to 24 free lines in equal shares, so that one
start, trained on this mixture, serves every number.
"""

import functools
import re
import string

import numpy as np

from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.tasks.generated import GeneratedTask, numbers_of_free_steps, rng_of

FREE_LINES = tuple(range(25))  # numbers of free lines without `data.free_steps`, in equal shares
RANGE = (0, 3 * len(string.ascii_lowercase))  # free lines that three letters can express
RIGHT = 0.55  # chance that a demonstration takes the right side of a fork
DEAD_END = 112  # minimum number of characters of a demonstration with a dead end
SIDES = "<>"
RIGHT_SIDES = "><"  # the right side of the first and of the second fork
FORK = "."  # first character of a fork's line
ANSWER = "\n#### "

_ANY_SIDE = "?"  # stands for either side in the form of a right response
_QUESTION = re.compile(r"\d{4}([a-z.]{3})")


@functools.lru_cache(maxsize=1024)  # all states of a solution have the same form
def form_of(question: str) -> str:
    """The form of all right responses to the question, with `?` for either side.

    Right responses have the same length, so a response is right exactly if it fits the form
    character by character.
    """
    match = _QUESTION.fullmatch(question)
    assert match, question
    lines = []
    for letter, side in zip(match[1], [*RIGHT_SIDES, ""], strict=True):
        length = 0 if letter == "." else string.ascii_lowercase.index(letter) + 1
        lines += [f"{string.ascii_lowercase[i]}{_ANY_SIDE}" for i in reversed(range(length))]
        lines += [FORK + side] if side else []
    return "".join(f"\n{line}" for line in lines) + ANSWER + RIGHT_SIDES


def value(question: str, response: str) -> float:
    """The exact value of the state after `response`, for the demonstrations' policy.

        V(s) = p^(forks still ahead)   if s is the beginning of a right response, p = `RIGHT`
        V(s) = 0                       in a dead end, and after any other text

    A fork counts as ahead until its side is written. So V of the prompt is p², after the first fork
    p, and from the second fork to the end 1, as the rest of a demonstration is always right.
    """
    form = form_of(question)
    if len(response) > len(form) or not all(map(_fits, response, form)):
        return 0.0
    ahead = form.removesuffix(ANSWER + RIGHT_SIDES)[len(response) :]
    return RIGHT ** sum(character in SIDES for character in ahead)


def _fits(written: str, expected: str) -> bool:
    return written in SIDES if expected == _ANY_SIDE else written == expected


class Bifurcation(GeneratedTask):
    """The task that the module's docstring describes; `tasks/base.py` documents the methods."""

    name = "bifurcation"

    def draw(self, rng: np.random.Generator, free_steps: int) -> tuple[str, str]:
        """(question, solution); each section has a third of the free lines, rounded down or up."""
        lengths = [(free_steps + i) // 3 for i in range(3)]
        letters = "".join(f".{string.ascii_lowercase}"[length] for length in lengths)
        question = f"{rng.integers(10_000):04}{letters}"
        return question, form_of(question).replace(_ANY_SIDE, SIDES[0])

    def prompt(self, problem: Problem) -> str:
        return f"{problem.question}:"

    def solution(self, problem: Problem) -> str:
        """A demonstration, which is right with chance p² and otherwise runs on in a dead end."""
        rng = rng_of(problem.question)
        form = form_of(problem.question)
        written = ""
        for expected in form.removesuffix(ANSWER + RIGHT_SIDES):
            if expected in SIDES and rng.random() >= RIGHT:
                return self._dead_end(written + SIDES[expected == "<"], len(form), rng)
            written += SIDES[rng.integers(2)] if expected == _ANY_SIDE else expected
        return written + form[len(written) :]

    def _dead_end(self, written: str, form_length: int, rng: np.random.Generator) -> str:
        while len(written) < max(DEAD_END, form_length + 20):
            written += f"\n!{SIDES[rng.integers(2)]}"
        return written

    def reward(self, problem: Problem, response: str) -> float:
        """1 for a whole right response, else 0."""
        is_whole = len(response) == len(form_of(problem.question))
        return float(is_whole and value(problem.question, response) == 1.0)


def make(data: DataConfig) -> Bifurcation:
    return Bifurcation(numbers_of_free_steps(data, FREE_LINES, *RANGE))
