"""BRPO: a judge compares every solution with a random one of its problem.

    A = 1 where a judge finds y better than a random other, -1 where worse, else 0

The random solution itself has A = 0; which one it is is drawn anew in every iteration.

Source: https://arxiv.org/abs/2506.00103 (Writing-Zero; read in another's account).

Departs: any judge, there a generative reward model.
"""

import numpy as np

from vinejax.contrib.methods.judged import JudgeConfig, judged, judgements
from vinejax.contrib.methods.solution_groups import members_of
from vinejax.core.seeds import host_rng
from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, per_solution
from vinejax.methods.base import Method
from vinejax.session.iteration import Iteration, Solutions


def a_random_one(iteration: Iteration, sampled: Solutions) -> list[list[tuple[str, str]]]:
    """The solution and the random one of its group, which is compared with none."""
    episodes = sampled.episodes
    pairs: list[list[tuple[str, str]]] = [[] for _ in episodes]
    for group in members_of(episodes):
        problem = episodes[group[0]].problem_id
        chosen = group[
            host_rng(iteration.cfg.seed, iteration.number, f"judge {problem}").integers(len(group))
        ]
        for i in group[group != chosen]:
            pairs[i] = [(episodes[i].text, episodes[chosen].text)]
    return pairs


def better_or_worse(chances: list[float]) -> float:
    """1, -1 or 0 by the chance, if there is one, that the solution is the better."""
    return float(np.sign(2 * sum(chances) - len(chances)))


def as_judged(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages above."""
    return per_solution(rollout, judgements(rollout))


METHOD = Method(
    as_judged,
    sample=judged(a_random_one, better_or_worse),
    settings=JudgeConfig,
    flags={"groups", "unmeasured"},
)
