"""Losses that are defined for whole steps or solutions, divided among their tokens.

As in `rl/losses.py`, the learner takes the means. Rows may hold several solutions (packing).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int, Real, ScalarLike

from vinejax.rl.losses import reinforce
from vinejax.rl.segments import segment_totals


@jax.jit
def advantage_regression(
    logprobs: Real[Array, "B T"],
    old_logprobs: Real[Array, "B T"],
    advantages: Real[Array, "B T"],
    mask: Bool[Array, "B T"],
    beta: ScalarLike,
    segment_ids: Int[Array, "B T"],
) -> Float32[Array, "B T"]:
    """Squared distance of each step's log-ratio from its advantage.

        Σ_{t∈c} L_t = ½·(d_c - A_c / β)²    d_c = Σ_{t∈c} (logπ_t - logπ_old_t)

    Args:
      logprobs: [B, T], log-probability of each token under the current policy, in nats.
      old_logprobs: [B, T], log-probability of each token under the policy that sampled it.
      advantages: [B, T], the step's advantage at each of its tokens.
      mask: bool [B, T], tokens of solutions.
      beta: β, advantage per nat; a smaller one moves the policy further.
      segment_ids: int [B, T], number of each token's step in its row, a segment of `rl.segments`.

    Returns:
      float32 [B, T], L_t, which is 0 outside the mask. With d_t = logπ_t - logπ_old_t, it is
      d_t·(½·d_c - A_c / β) plus the token's equal part of ½·(A_c / β)².

    Source: Direct Advantage Policy Optimization, https://arxiv.org/abs/2412.18279.
    """
    moved = jnp.where(mask, jnp.float32(logprobs) - jnp.float32(old_logprobs), 0.0)
    target = jnp.where(mask, jnp.float32(advantages) / beta, 0.0)
    tokens = jnp.maximum(segment_totals(mask.astype(jnp.int32), segment_ids), 1)
    total = segment_totals(moved, segment_ids)
    return moved * (0.5 * total - target) + jnp.where(mask, 0.5 * target**2 / tokens, 0.0)


@jax.jit
def opmd(
    logprobs: Real[Array, "B T"],
    old_logprobs: Real[Array, "B T"],
    advantages: Real[Array, "B T"],
    mask: Bool[Array, "B T"],
    tau: ScalarLike,
    segment_ids: Int[Array, "B T"],
) -> Float32[Array, "B T"]:
    """Online policy mirror descent: REINFORCE with a penalty on leaving the sampling policy.

        Σ_t L_t = -A·logπ(y) + τ/2·(logπ(y) - logπ_old(y))²    logπ(y) = Σ_t logπ_t

    With d_t = logπ_t - logπ_old_t the square is (Σ d)², of which token t gets the part d_t·Σ d.

    Args:
      logprobs: [B, T], log-probability of each token under the current policy, in nats.
      old_logprobs: [B, T], the same under the policy that sampled it.
      advantages: [B, T], the advantage of the solution, repeated for each of its tokens.
      mask: bool [B, T], the tokens of solutions.
      tau: τ; 0 gives `reinforce`.
      segment_ids: int [B, T], the number, within its row, of the solution that a token belongs to.

    Returns:
      float32 [B, T], 0 outside the mask.

    Source: Kimi k1.5, https://arxiv.org/abs/2501.12599, section 2.3.2, with A = r - mean r.
    """
    logprobs = jnp.where(mask, jnp.float32(logprobs), 0.0)
    difference = logprobs - jnp.where(mask, jnp.float32(old_logprobs), 0.0)
    shares = difference * segment_totals(difference, segment_ids)
    return jnp.where(mask, reinforce(logprobs, advantages) + 0.5 * tau * shares, 0.0)
