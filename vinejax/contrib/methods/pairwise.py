"""Pairwise-RL: a judge compares every solution with the data's, in both orders.

    A = s - mean s    s = ½·(p(y, a) + 1 - p(a, y))    a: the data's solution
    p(x, z): a judge's chance that x is better than z

Both orders cancel a judge's liking for what comes first.

Source: https://arxiv.org/abs/2504.04950 (read in another's account).

Departs: the group's mean, there a critic; as `brpo`.
"""

import numpy as np

from vinejax.contrib.methods.judge_stage import JudgeConfig, judged_solutions, judgements
from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, group_numbers, per_solution
from vinejax.methods.base import Method
from vinejax.rl.advantages import group_advantages
from vinejax.session.iteration import Iteration, Solutions


def data_opponents(iteration: Iteration, sampled: Solutions) -> list[list[tuple[str, str]]]:
    """The solution before the data's, and after it."""
    task = iteration.session.task
    anchors = {problem.id: task.solution(problem) for problem, _ in sampled.problems}
    texts = [(episode.text, anchors[episode.problem_id]) for episode in sampled.episodes]
    return [[(text, anchor), (anchor, text)] for text, anchor in texts]


def order_free_chance(chances: list[float]) -> float:
    """The mean of both orders' chances that the solution is the better."""
    first, second = chances
    return (first + 1 - second) / 2


def centred_judge_credit(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages above."""
    groups = group_numbers(rollout.episodes)
    return per_solution(rollout, np.asarray(group_advantages(judgements(rollout), groups, "mean")))


METHOD = Method(
    centred_judge_credit,
    sample=judged_solutions(data_opponents, order_free_chance),
    settings=JudgeConfig,
    flags={"groups", "unmeasured"},
)
