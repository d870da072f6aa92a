"""A chain of letters, what the bench samples with, and measures without gaps.

For the tests of the credit bench in tests/bench.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from helpers import loop_cases as cases
from helpers.applied import sampler
from helpers.chain_cases import START, Chain
from helpers.vine_cases import PROBLEM, FakeEngine, Task, rewards_of
from vinejax.core.settings import Config
from vinejax.core.types import Episode, Problem, PromptedProblem
from vinejax.rollout.sampler import Sampler
from vinejax.tools.bench.intervals import Measure

# Letters that are better and worse, none of them without hope; the reward is 0 or 1.
FAIR = Chain(
    moves=np.array([[0.4, 0.3, 0.2, 0.1]] * 2 + [[0.1, 0.2, 0.3, 0.4]] * 2 + [[0.25] * 4]),
    rewards=np.array([1.0, 1.0, 0.0, 0.0]),
    length=4,
)


def sampling(
    engine: FakeEngine,
    cfg: Config,
    iteration: int = 0,
    problems: Sequence[PromptedProblem] = (PROBLEM,),
) -> tuple[Sampler, dict[str, Any], list[PromptedProblem]]:
    """The first arguments of functions that sample: a sampler, weights and problems.

    The engine is a fake one, which needs no weights.
    """
    return sampler(engine, rewards_of(Task()), cfg, iteration), {}, list(problems)


def chain_solutions(
    chain: Chain, rng: np.random.Generator, problems: int
) -> tuple[list[Episode], list[PromptedProblem]]:
    """(four solutions of each of so many problems on a chain of letters, the problems)."""
    episodes = chain.episodes(rng, problems, group=4)
    return episodes, [(Problem(str(i), "", ""), [cases.BOS]) for i in range(problems)]


def chain_value(chain: Chain, letters: Sequence[int]) -> float:
    """The value, in closed form, of the state after these letters."""
    return float(chain.values()[len(letters), letters[-1] if letters else START])


def number(x: float | None) -> float:
    """A number that may not be missing."""
    assert x is not None
    return x


def interval(measure: Measure) -> tuple[float, float]:
    """The ends of an interval that may not be missing."""
    return number(measure.low), number(measure.high)
