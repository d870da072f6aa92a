"""Corrections for solutions that another policy sampled than the one that the learner computes.

Engine and learner run different programs, and in bfloat16 they round at different points. With d_t
= logπ_old - logπ_sampler, of the learner's policy before its updates and of the sampler's, exp(d_t)
times a token's loss is what the loss would be in expectation had the learner sampled.
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

        w = exp(d_t) per token, exp(Σ_t d_t) per sequence; outside [low, high] its nearer bound if
        truncated, 0 if masked

    The product over a sequence is unbiased; the weights of tokens alone vary less. Where both
    policies agree to the bit every weight is exactly 1.

    Args:
      old_logprobs: [B, T], the learner's, in nats.
      sampler_logprobs: [B, T], those with which the tokens were drawn.
      mask: bool [B, T], the tokens that were sampled; one sequence per row.
      per: 'token' or 'sequence'.
      outside: 'truncate' or 'mask'.
      low, high: bounds of a weight.

    Returns:
      float32 [B, T], 0 off the mask.

    Source: truncated, TIS, https://fengyao.notion.site/off-policy-rl; masked, MIS,
    https://richardli.xyz/rl-collapse; masked by two bounds per token, IcePop,
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
