"""Pairwise-RL: a judge compares every solution with the data's solution, in both orders.

    A = s - mean s    s = ½·(p(y, a) + 1 - p(a, y))    a: the data's solution
    p(x, z): a judge's chance that x is better than z

Comparing in both orders cancels a judge's preference for the first or the second response.

Source: https://arxiv.org/abs/2504.04950 (known to us from another paper's account).

Departs: the baseline is the group's mean, in the paper a critic; the judge is any function.
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
    """The pairs (solution, data's solution) and (data's solution, solution)."""
    task = iteration.session.task
    anchors = {problem.id: task.solution(problem) for problem, _ in sampled.problems}
    texts = [(episode.text, anchors[episode.problem_id]) for episode in sampled.episodes]
    return [[(text, anchor), (anchor, text)] for text, anchor in texts]


def order_free_chance(chances: list[float]) -> float:
    """The chance that the solution is the better one, as the mean over both orders."""
    first, second = chances
    return (first + 1 - second) / 2


def centred_judge_credit(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring."""
    groups = group_numbers(rollout.episodes)
    return per_solution(rollout, np.asarray(group_advantages(judgements(rollout), groups, "mean")))


METHOD = Method(
    centred_judge_credit,
    sample=judged_solutions(data_opponents, order_free_chance),
    settings=JudgeConfig,
    flags={"groups", "unmeasured"},
)
