"""HAPO: clip bounds and advantages by the entropy before a token.

    A = (r - mean r) / (std r + 1e-6) over tokens
    h̃: log H minus its 0.8-quantile, scaled to [-1, 1]
    A·(1 + h̃) where π/π_old is outside [1 - ε/2, 1 + ε_high/2] and h̃ > 0, or inside and h̃ ≤ 0
    clip: ε·(1 - h̃) where h̃ ≤ 0, ε_high·(1 + h̃) where h̃ > 0

Source: https://arxiv.org/abs/2509.16591 (v2), equations 5 to 13; starriver030515/HAPO.

Departs: only the paper's loss is built; H is the entropy of π_old. The authors' code loses the sign
of low h̃, has a dual clip of 3, and takes GRPO's A where an advantage exceeds 5.
"""

from collections.abc import Set

import jax
import numpy as np

from vinejax.contrib.methods.equations.entropy_weights import (
    entropy_clip,
    relative_entropy,
    token_group_advantages,
)
from vinejax.contrib.methods.settings import HAPOConfig
from vinejax.core.settings import Config
from vinejax.core.types import Batch, Rollout
from vinejax.credit.assign import Credit, group_numbers, per_solution, solution_rewards
from vinejax.learner.policy import PolicyLoss, PolicyObjective
from vinejax.methods.base import OF_RETURNS, Method
from vinejax.methods.stages import ENTROPY, MethodState


class Entropies(MethodState):
    """A state without data, which asks the scoring pass for the entropy before each token."""

    def reads(self, cfg: Config) -> Set[str]:
        return {ENTROPY}


def token_group_credit(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages A in the module's docstring, with h̃ as `loss_extra` for the loss."""
    assert rollout.entropy is not None, "the scoring pass keeps entropies for this method"
    episodes = rollout.episodes
    lengths = np.array([episode.is_drawn.sum() for episode in episodes])
    advantages = token_group_advantages(
        solution_rewards(episodes), lengths, group_numbers(episodes)
    )
    mask = np.asarray(rollout.batch.mask)
    relative = relative_entropy(rollout.entropy, mask, HAPOConfig.of(cfg).quantile)
    return per_solution(rollout, advantages)._replace(loss_extra=relative)


def loss(logprobs: jax.Array, batch: Batch, objective: PolicyObjective) -> PolicyLoss:
    """The clipped loss of `equations.entropy_weights.entropy_clip`; h̃ is `batch.loss_extra`."""
    by_token, clipped = entropy_clip(
        logprobs,
        batch.old_logprobs,
        batch.advantages,
        relative=batch.loss_extra,
        clip=objective.clip,
    )
    return PolicyLoss(by_token, clipped)


METHOD = Method(
    token_group_credit,
    loss=loss,
    state=Entropies(),
    settings=HAPOConfig,
    ignores=OF_RETURNS,
    defaults={"ppo.clip_high": 0.28},
    flags={"groups", "unmeasured"},
)
