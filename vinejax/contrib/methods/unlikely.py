"""Unlikeliness reward: GRPO in which likely right solutions earn less than rare ones.

    A = (r' - mean r') / (std r' + 1e-6)    r'_i = r_i·(1 - β·k_i / n)    std of the sample
    k_i: number of the n solutions with a lower mean log-probability

GRPO makes likely solutions likelier. Here rare right solutions gain the most, which is meant to
raise pass@k.

Source: https://arxiv.org/abs/2506.02355; AndreHe02/rewarding-unlikely-release at ca1cff0.

Departs: the authors take two epochs, 32 solutions per problem and a KL of 0.1.
"""

import numpy as np

from vinejax.contrib.methods.equations.group_weights import unlikely_rewards
from vinejax.contrib.methods.settings import UnlikelyConfig
from vinejax.contrib.methods.solution_groups import members_of, token_means
from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, group_numbers, per_solution, solution_rewards
from vinejax.methods.base import OF_RETURNS, Method
from vinejax.rl.advantages import group_advantages


def unlikely_credit(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring."""
    episodes = rollout.episodes
    rewards, logprobs = (
        solution_rewards(episodes),
        token_means(rollout, rollout.batch.old_logprobs),
    )
    for group in members_of(episodes):
        rewards[group] = unlikely_rewards(
            rewards[group], logprobs[group], UnlikelyConfig.of(cfg).beta
        )
    advantages = group_advantages(rewards, group_numbers(episodes), "grpo", ddof=1, eps=1e-6)
    return per_solution(rollout, np.asarray(advantages))


METHOD = Method(
    unlikely_credit,
    settings=UnlikelyConfig,
    ignores=OF_RETURNS,
    flags={"groups", "logprobs"},
)
