"""BRPO: a judge compares every solution with a random one of its problem.

    A = 1 where a judge finds y better than a random other solution, -1 where worse, else 0

The random solution is drawn anew in every iteration, and has A = 0 itself.

Source: https://arxiv.org/abs/2506.00103 (Writing-Zero; known to us from another paper's account).

Departs: the judge is any function; the paper's is a generative reward model.
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
    """The pairs (solution, random solution of its group); none for the random solution itself."""
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
    """1 if the solution is probably the better one, -1 if the worse, 0 for a draw or no pair."""
    return float(np.sign(2 * sum(chances) - len(chances)))


def judge_credit(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring."""
    return per_solution(rollout, judgements(rollout))


METHOD = Method(
    judge_credit,
    sample=judged_solutions(random_opponents, sign_of_verdict),
    settings=JudgeConfig,
    flags={"groups", "unmeasured"},
)
