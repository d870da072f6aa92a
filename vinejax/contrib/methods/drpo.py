"""DRPO: right solutions are weighted against one another by length, wrong ones by likelihood.

    A = n·w    loss: -A·logπ, mean per solution    n: solutions of the problem
    right: w = e^((1 - l) / Λ) / Σ of the right    l: tokens / `sample.max_tokens`
    wrong: w = -e^(s / τ) / Σ of the wrong    s: mean log-probability of its tokens

A short right solution gains the most. A long one gains less, but is never made less likely.

Source: https://arxiv.org/abs/2510.04474; Optimization-AI/DRPO at 405f702.

Departs: s is by π_old; the KL is that of `kl.coef`; the paper bounds the KL to π_old instead.
"""

import numpy as np

from vinejax.contrib.methods.asymre import loss
from vinejax.contrib.methods.equations.group_weights import decoupled_weights
from vinejax.contrib.methods.settings import DRPOConfig
from vinejax.contrib.methods.solution_groups import members_of, token_means
from vinejax.core.settings import Config
from vinejax.core.types import Rollout, is_correct
from vinejax.credit.assign import Credit, per_solution
from vinejax.methods.base import OF_RATIO, OF_RETURNS, Method


def decoupled_credit(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages A = n·w in the module's docstring."""
    settings, episodes = DRPOConfig.of(cfg), rollout.episodes
    right = np.array([is_correct(episode.reward) for episode in episodes])
    lengths = np.array([episode.length for episode in episodes]) / cfg.sample.max_tokens
    logprobs = token_means(rollout, rollout.batch.old_logprobs)
    advantages = np.zeros(len(episodes))
    for group in members_of(episodes):
        weights = decoupled_weights(
            logprobs[group], right[group], lengths[group], settings.lam, settings.tau
        )
        advantages[group] = len(group) * weights
    return per_solution(rollout, advantages)


METHOD = Method(
    decoupled_credit,
    loss=loss,
    settings=DRPOConfig,
    ignores=(*OF_RATIO, *OF_RETURNS, "reward.overlong"),  # lengths are in the weights
    defaults={"ppo.reduction": "sequence"},
    flags={"groups", "logprobs"},
)
