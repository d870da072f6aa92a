"""The policy losses that `ppo.loss` can name, as functions for `PolicyObjective.loss`."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from vinejax.core.settings import PPOConfig
from vinejax.core.types import Batch
from vinejax.learner.policy import PolicyLoss, PolicyObjective, clipped_loss
from vinejax.rl import ratio_losses
from vinejax.rl.losses import is_clipped, probability_ratio


class NamedLoss(NamedTuple):
    """A policy loss that any policy-gradient method can use."""

    function: Callable[[jax.Array, Batch, PolicyObjective], PolicyLoss]
    bounds: Callable[[PPOConfig], tuple[float, ...]]  # values of `PolicyObjective.clip`
    reduction: str | None = None  # the reduction of the loss's paper; None: the method's reduction
    of_sequences: bool = False  # whether the loss of a token depends on its whole solution


def gspo(logprobs: jax.Array, batch: Batch, objective: PolicyObjective) -> PolicyLoss:
    """The loss `rl.ratio_losses.gspo`, which clips all tokens of a solution together."""
    old, advantages, mask = batch.old_logprobs, batch.advantages, batch.mask
    mean = ratio_losses.shared_mean(logprobs - old, mask, batch.segment_ids)
    outside = is_clipped(mean, jnp.zeros_like(mean), advantages, objective.clip)
    loss = ratio_losses.gspo(
        logprobs, old, advantages, mask, clip=objective.clip, segment_ids=batch.segment_ids
    )
    return PolicyLoss(loss, outside)


def cispo(logprobs: jax.Array, batch: Batch, objective: PolicyObjective) -> PolicyLoss:
    """The loss `rl.ratio_losses.cispo`. Tokens count as clipped if their ratio is clipped."""
    (low, high), old = objective.clip, batch.old_logprobs
    ratio = probability_ratio(logprobs, old)
    loss = ratio_losses.cispo(logprobs, old, batch.advantages, objective.clip)
    return PolicyLoss(loss, (ratio < 1 - low) | (ratio > 1 + high))


def sapo(logprobs: jax.Array, batch: Batch, objective: PolicyObjective) -> PolicyLoss:
    """The loss `rl.ratio_losses.sapo`, which clips no token."""
    loss = ratio_losses.sapo(logprobs, batch.old_logprobs, batch.advantages, objective.clip)
    return PolicyLoss(loss, jnp.zeros_like(batch.mask))


LOSSES = {
    "clip": NamedLoss(clipped_loss, lambda ppo: (ppo.clip, ppo.clip_high or ppo.clip)),
    "gspo": NamedLoss(gspo, lambda ppo: ppo.gspo_clip, "sequence", of_sequences=True),
    "cispo": NamedLoss(cispo, lambda ppo: ppo.cispo_clip, "token"),
    "sapo": NamedLoss(sapo, lambda ppo: ppo.sapo_tau, "sequence"),
}
