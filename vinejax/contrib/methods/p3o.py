"""P3O: half the difference of two solutions' rewards, with one clipped ratio per solution.

    A_i = mean over other solutions j of (r_i - r_j) / 2
    loss of a solution: clipped with ρ = π(y) / π_old(y)

Source: https://arxiv.org/abs/2310.00212, sections 4.1 and 4.2.

Departs: all pairs of a problem count, in the paper one; the clip is the separate one (P3O-V1); the
KL is in the loss.
"""

import jax
import numpy as np

from vinejax.contrib.methods.equations.sequence_losses import sequence_clip
from vinejax.core.settings import Config
from vinejax.core.types import Batch, Rollout
from vinejax.credit.assign import Credit, group_numbers, per_solution, solution_rewards
from vinejax.learner.policy import PolicyLoss, PolicyObjective
from vinejax.methods.base import Method
from vinejax.rl.advantages import group_advantages


def half_differences(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring, which are half of RLOO's."""
    rewards = solution_rewards(rollout.episodes)
    advantages = group_advantages(rewards, group_numbers(rollout.episodes), "rloo")
    return per_solution(rollout, 0.5 * np.asarray(advantages))


def loss(logprobs: jax.Array, batch: Batch, objective: PolicyObjective) -> PolicyLoss:
    """The clipped loss of whole solutions: `equations.sequence_losses.sequence_clip`."""
    by_token, clipped = sequence_clip(
        logprobs,
        batch.old_logprobs,
        batch.advantages,
        mask=batch.mask,
        clip=objective.clip,
        segment_ids=batch.segment_ids,
    )
    return PolicyLoss(by_token, clipped)


METHOD = Method(
    half_differences, loss=loss, defaults={"ppo.reduction": "sequence"}, flags={"groups"}
)
