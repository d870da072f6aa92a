"""GDPO: GRPO on several rewards, each normalised in its group before they are added.

    A = (a - mean a) / (std a + 1e-4) over the batch
    a = Σ_n w_n·(r_n - mean r_n) / (std r_n + 1e-4)
    r_n, w_n: `reward.functions`, `reward.weights`; std of the sample

GRPO normalises the sum of the rewards, in which a reward of a small scale is lost, and different
combinations of rewards become one advantage. Here a reward counts by its weight alone.

Source: https://arxiv.org/abs/2601.05242; NVlabs/GDPO at 2652ab4; in TRL it is
`multi_objective_aggregation="normalize_then_sum"`.

Departs: the loss is a mean over tokens; rewards of steps are one more reward of weight 1; every
reward of a response that the budget cut is `reward.truncated`.
"""

import numpy as np

from vinejax.contrib.methods.equations.decoupled_rewards import decoupled_advantages
from vinejax.core.settings import Config
from vinejax.core.types import Episode, Rollout
from vinejax.credit.assign import Credit, group_numbers, per_solution
from vinejax.methods.base import OF_RETURNS, Method
from vinejax.tasks.rewards import find_rewards


def decoupled_credit(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring."""
    rewards, weights = weighted_rewards(rollout.episodes, cfg)
    advantages = decoupled_advantages(rewards, group_numbers(rollout.episodes), weights)
    return per_solution(rollout, advantages.astype(np.float32))


def weighted_rewards(episodes: list[Episode], cfg: Config) -> tuple[np.ndarray, np.ndarray]:
    """(f64[B, N] rewards, NaN where a function gives none; f64[N] their weights).

    Without `reward.functions` the outcome is the only reward of whole solutions.
    """
    functions = find_rewards(cfg.reward)
    columns = [
        [_reward_by(function.name, episode) for episode in episodes] for function in functions
    ]
    weights = [function.weight for function in functions]
    if not functions:
        columns, weights = [[episode.reward for episode in episodes]], [1.0]
    if any(episode.step_rewards for episode in episodes):
        columns.append([sum(episode.step_rewards or []) for episode in episodes])
        weights.append(1.0)
    return np.array(columns).T, np.array(weights)


def _reward_by(name: str, episode: Episode) -> float:
    if episode.reward_parts is None:  # the budget cut the response, so no function read it
        return episode.reward
    return episode.reward_parts.get(name, np.nan)


METHOD = Method(
    decoupled_credit,
    # The last two are about the sum of the rewards.
    ignores=(*OF_RETURNS, "rollout.zero_variance", "reward.overlong"),
    flags={"groups"},
)
