"""Importance weights for solutions whose sampler differs from the learner's policy.

Engine and learner run different programs, which in bfloat16 round at different points. Let d_t be
logπ_old - logπ_sampler, where π_old is the policy as the learner computes it before the updates.
A token's loss times exp(d_t) has the expectation that the loss would have if the learner had
sampled the token, after a text that the sampler wrote. If the policies differ by more than
rounding, this text makes the expectation biased; weights of whole sequences have no such bias.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Real, ScalarLike

from vinejax.rl.losses import probability_ratio


@jax.jit(static_argnames=("per", "outside"))
def correction_weights(
    old_logprobs: Real[Array, "B T"],
    sampler_logprobs: Real[Array, "B T"],
    mask: Bool[Array, "B T"],
    per: str,
    outside: str,
    low: ScalarLike = 0.0,
    high: ScalarLike = jnp.inf,
) -> Float32[Array, "B T"]:
    """Importance weight of every token's policy loss, a constant of the update.

        w_t = exp(d_t) per token, or exp(Σ_t d_t) per sequence

    A weight outside [low, high] becomes the nearer bound if truncated, and 0 if masked. Weights of
    whole sequences are unbiased where no bound applies; weights of single tokens vary less. Where
    both policies agree to the bit, every weight is exactly 1.

    Args:
      old_logprobs: [B, T], log-probabilities by the learner, in nats.
      sampler_logprobs: [B, T], log-probabilities with which the sampler drew the tokens.
      mask: bool [B, T], sampled tokens. Each row holds one sequence.
      per: 'token' or 'sequence'.
      outside: 'truncate' or 'mask'.
      low, high: bounds of a weight.

    Returns:
      float32 [B, T], 0 outside the mask.

    Source: TIS (truncated), https://fengyao.notion.site/off-policy-rl; MIS (masked),
    https://richardli.xyz/rl-collapse; IcePop (masked per token, with two bounds),
    https://arxiv.org/abs/2510.18855. Code: TRL 1.16.0, `GRPOTrainer`.
    """
    difference = jnp.where(mask, jnp.float32(old_logprobs) - jnp.float32(sampler_logprobs), 0.0)
    if per == "sequence":
        difference = jnp.broadcast_to(difference.sum(axis=1, keepdims=True), mask.shape)
    weights = probability_ratio(difference, jnp.zeros_like(difference))
    if outside == "truncate":
        weights = jnp.clip(weights, low, high)
    else:
        weights = jnp.where((weights >= low) & (weights <= high), weights, 0.0)
    return jnp.where(mask, weights, 0.0)
