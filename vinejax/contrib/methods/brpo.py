"""BRPO: a judge compares every solution with a random one of its problem.

    A = 1 where a judge finds y better than a random other, -1 where worse, else 0

The random solution itself has A = 0; which one it is is drawn anew in every iteration.

Source: https://arxiv.org/abs/2506.00103 (Writing-Zero; read in another's account).

Departs: any judge, there a generative reward model.
"""

import numpy as np

from vinejax.contrib.methods.judge_stage import JudgeConfig, judged_solutions, judgements
from vinejax.contrib.methods.solution_groups import members_of
from vinejax.core.seeds import host_rng
from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, per_solution
from vinejax.methods.base import Method
from vinejax.session.iteration import Iteration, Solutions


def random_opponents(iteration: Iteration, sampled: Solutions) -> list[list[tuple[str, str]]]:
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


def sign_of_verdict(chances: list[float]) -> float:
    """1, -1 or 0 by the chance, if there is one, that the solution is the better."""
    return float(np.sign(2 * sum(chances) - len(chances)))


def judge_credit(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages above."""
    return per_solution(rollout, judgements(rollout))


METHOD = Method(
    judge_credit,
    sample=judged_solutions(random_opponents, sign_of_verdict),
    settings=JudgeConfig,
    flags={"groups", "unmeasured"},
)
