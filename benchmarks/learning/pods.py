"""PODS: GRPO that samples many solutions of a problem and trains on those of the largest spread.

    --config.method=benchmarks.learning.pods --config.rollout.per_prompt=8

Of the `rollout.per_prompt` solutions of a problem the method trains on `pods.trained`, chosen so
that the variance of their rewards is largest. The advantages are GRPO's among these:

    A = (r - mean r) / (std r + 1e-8)

Source: https://arxiv.org/abs/2504.13818, section 3; `max-variance down-sampling`.
"""

import numpy as np

from vinejax.core.ranges import Count
from vinejax.core.sections import MethodSettings
from vinejax.core.types import Episode, PromptedProblem, RunState
from vinejax.credit.assign import group_numbers, solution_rewards
from vinejax.methods import stages
from vinejax.methods.base import OF_GROUPS, Method
from vinejax.methods.baselines import standardised
from vinejax.session.iteration import Iteration, Solutions


class PodsConfig(MethodSettings, section="pods"):
    trained: Count = 4  # solutions of a problem that are trained on


def largest_spread(rewards: np.ndarray, count: int) -> np.ndarray:
    """The ascending indices of the `count` rewards with the largest variance, of f[n].

    It is that of some number of the lowest rewards and the rest of the highest (the source's
    theorem). If there are at most `count` rewards, all are taken.
    """
    order = np.argsort(rewards, kind="stable")
    surplus = max(len(order) - count, 0)
    choices = [np.delete(order, slice(low, low + surplus)) for low in range(count + 1)]
    return np.sort(max(choices, key=lambda chosen: float(np.var(rewards[chosen]))))


def spread_out(episodes: list[Episode], count: int) -> list[Episode]:
    """The episodes of `largest_spread` in every group, in the order of `episodes`."""
    groups, rewards = group_numbers(episodes), solution_rewards(episodes)
    kept: list[int] = []
    for number in range(groups.max() + 1):
        rows = np.flatnonzero(groups == number)
        kept += rows[largest_spread(rewards[rows], count)].tolist()
    return [episodes[row] for row in sorted(kept)]


def sample(iteration: Iteration, state: RunState, problems: list[PromptedProblem]) -> Solutions:
    """`rollout.per_prompt` solutions of each problem, of which `pods.trained` are learned from."""
    found = stages.solutions(iteration, state, problems)
    kept = spread_out(found.episodes, PodsConfig.of(iteration.cfg).trained)
    iteration.metrics["rollout/discarded"] = len(found.sampled) - len(kept)
    return found._replace(episodes=kept)


METHOD = Method(
    standardised,
    sample=sample,
    settings=PodsConfig,
    defaults={"reward.scale": "group"},
    flags={"groups"},
    reads=OF_GROUPS,
)
