"""SubPO: rewards of steps are marginal gains of a submodular function, here of coverage.

    0abc 1bcd 2ae 3cef 4df   the prompt: numbered sets of letters
    0                        a step picks a set, here one of 3 letters; the best two cover 5
    3                        the second step covers 2 letters more

    r_i = F(S_i) - F(S_{i-1})    F(S): letters that the sets S cover, over the most that `PICKS` can

S_i are the sets that the first i lines pick, of which `PICKS` count. A line that is no number of a
set, or that repeats one, gains nothing. The rewards of a solution add up to F of all its sets. If
the token budget cuts a response, its outcome is `reward.truncated`; with the default 0 it earns F
or, where no choice covers more, F - 1.

A text prefix names the sets so far, so that rewards depend on the state and the step alone, and
continuations estimate V(s) without bias; the paper's states are single places of a history.

SubPO's gradient, Σ_i ∇logπ(a_i)·(Σ_{j≥i} r_j - b), is that of method 'reinforce++' with γ = 1.

Source: https://arxiv.org/abs/2307.13372; manish-pra/non-additive-RL at bdb52da, `main.py`.

Departs: b is the mean over the iteration and advantages are divided by their std; the code has no
baseline, takes each step's own gain in place of the sum, and adds an entropy bonus.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence

from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.tasks.base import Split
from vinejax.tasks.generated import CharacterTask, rng_of, split_of
from vinejax.tasks.steps import split_steps

LETTERS, SETS, PICKS = "abcdefgh", 5, 2
QUESTIONS = 2000


def covered(sets: Iterable[str]) -> int:
    """The number of different letters in all sets together."""
    return len(set().union(*sets))


def sets_of(question: str) -> dict[str, str]:
    """The letters of each set by its number."""
    return {part[0]: part[1:] for part in question.split()}


def most(question: str) -> int:
    """The largest number of letters that `PICKS` sets of the question cover."""
    return max(map(covered, itertools.combinations(sets_of(question).values(), PICKS)))


def counts(question: str, lines: Sequence[str]) -> list[int]:
    """[1 + lines] the number of letters that are covered before and after each line."""
    offered, picked, found = sets_of(question), [], [0]
    for line in map(str.strip, lines):
        if line in offered and len(picked) < PICKS:
            picked.append(offered[line])
        found.append(covered(picked))
    return found


class Coverage(CharacterTask):
    """The task of the module's docstring; `tasks/base.py` documents the methods."""

    name = "coverage"

    def load(self, split: Split) -> list[Problem]:
        own = [question for question in _questions() if split_of(question) == split]
        return [Problem(f"{split}/{i}", question, "") for i, question in enumerate(own)]

    def prompt(self, problem: Problem) -> str:
        return f"{problem.question}\n"

    def solution(self, problem: Problem) -> str:
        """A demonstration: `PICKS` sets at random, some twice."""
        rng = rng_of(f"solution {problem.question}")
        return "\n".join(map(str, rng.choice(list(sets_of(problem.question)), PICKS)))

    def split(self, text: str) -> list[int]:
        return split_steps(text, "lines")

    def answer(self, text: str) -> str | None:
        return " ".join(sorted(text.split())) or None

    def reward(self, problem: Problem, response: str) -> float:
        """1 if no other choice covers more, else 0: the accuracy in evaluations."""
        question = problem.question
        return float(counts(question, response.splitlines())[-1] == most(question))

    def step_rewards(self, problem: Problem, steps: Sequence[str]) -> list[float]:
        """The gains. The last one is less by the outcome, so that a solution earns F in all."""
        number = most(problem.question)
        found = counts(problem.question, steps)
        gains = [(after - before) / number for before, after in itertools.pairwise(found)]
        if gains:
            gains[-1] -= self.reward(problem, "".join(steps))
        return gains


@functools.cache
def _questions() -> list[str]:
    return list(dict.fromkeys(map(_question, range(QUESTIONS))))


def _question(number: int) -> str:
    """`SETS` sets of two to four letters."""
    rng = rng_of(f"coverage {number}")
    sizes = rng.integers(2, 5, SETS)
    letters = [sorted(rng.choice(list(LETTERS), size, replace=False)) for size in sizes]
    return " ".join(f"{i}{''.join(part)}" for i, part in enumerate(letters))


def make(data: DataConfig) -> Coverage:
    return Coverage()
