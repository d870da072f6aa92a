"""AsymRE: REINFORCE on any data, with a baseline below or above the group's mean.

    A = r - (mean r + `asymre.shift`)    loss: -A·logπ

Source: https://arxiv.org/abs/2506.20520.
"""

import jax
import numpy as np

from vinejax.contrib.methods.settings import AsymREConfig
from vinejax.core.settings import Config
from vinejax.core.types import Batch, Rollout
from vinejax.credit.assign import Credit, group_numbers, per_solution, rewards_with_kl
from vinejax.learner.policy import PolicyLoss, PolicyObjective
from vinejax.methods.base import OF_RATIO, OF_RETURNS, OF_TOKENS, Method
from vinejax.rl import losses
from vinejax.rl.advantages import group_advantages


def less_shifted_mean(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages A = r - (mean of r over the problem's solutions + `asymre.shift`)."""
    rewards = rewards_with_kl(rollout, cfg)
    advantages = group_advantages(rewards, group_numbers(rollout.episodes), "mean")
    return per_solution(rollout, np.asarray(advantages) - np.float32(AsymREConfig.of(cfg).shift))


def loss(logprobs: jax.Array, batch: Batch, objective: PolicyObjective) -> PolicyLoss:
    """The loss of `rl.losses.reinforce`, which has no probability ratio."""
    return PolicyLoss(losses.reinforce(logprobs, batch.advantages))


METHOD = Method(
    less_shifted_mean,
    loss=loss,
    settings=AsymREConfig,
    reads=OF_TOKENS,
    ignores=OF_RATIO + OF_RETURNS,
    flags={"groups"},
)
