"""Policy losses that bound the probability ratio in other ways than PPO's clip.

Each is a loss per token, float32 [B, T], to be minimised. Log-probabilities and advantages are
those of `rl.losses.ppo_clip`, and `clip` is its pair (ε_low, ε_high). `mask` has the tokens of
solutions, and `segment_ids`, int [B, T], the number, within its row, of the solution that a token
belongs to. ρ_t is the `probability_ratio` of token t.

GSPO is published as a loss of whole solutions with one advantage each. Here the loss of a token is
its own advantage times the solution's ratio, whose gradient goes through the token's own
log-probability. If all tokens of a solution have the same advantage, the mean over them has the
published value and gradient.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int, Real, ScalarLike

from vinejax.rl.losses import ppo_clip, probability_ratio, reinforce
from vinejax.rl.segments import segment_totals

PerToken = Real[Array, "B T"]
Pair = Sequence[ScalarLike]


@jax.jit
def shared_mean(
    x: PerToken, mask: Bool[Array, "B T"], segment_ids: Int[Array, "B T"]
) -> Float32[Array, "B T"]:
    """For each token, the mean of x over the solution that the token belongs to.

    The result has the value of the mean but, at each token, the gradient of the token's own x.
    """
    x = jnp.where(mask, jnp.float32(x), 0.0)
    count = segment_totals(mask.astype(jnp.float32), segment_ids)
    mean = segment_totals(x, segment_ids) / jnp.maximum(count, 1.0)
    return x + lax.stop_gradient(mean - x)


@jax.jit
def gspo(
    logprobs: PerToken,
    old_logprobs: PerToken,
    advantages: PerToken,
    mask: Bool[Array, "B T"],
    clip: Pair,
    segment_ids: Int[Array, "B T"],
) -> Float32[Array, "B T"]:
    """Group sequence policy optimisation: all tokens of a solution have the same ratio.

        L_t = max(-A_t·s, -A_t·clip(s, 1 - ε_low, 1 + ε_high))    s = (π(y) / π_old(y))^(1/|y|)

    Source: GSPO-token, https://arxiv.org/abs/2507.18071, section 4.3.
    """
    mean_difference = shared_mean(
        jnp.float32(logprobs) - jnp.float32(old_logprobs), mask, segment_ids
    )
    return ppo_clip(mean_difference, jnp.zeros_like(mean_difference), advantages, clip)


@jax.jit
def cispo(
    logprobs: PerToken, old_logprobs: PerToken, advantages: PerToken, clip: Pair
) -> Float32[Array, "B T"]:
    """REINFORCE weighted by the clipped ratio, so that every token keeps a gradient.

        L_t = -sg[clip(ρ_t, 1 - ε_low, 1 + ε_high)]·A_t·logπ_t    sg: no gradient

    Source: MiniMax-M1, https://arxiv.org/abs/2506.13585, section 3.1.
    """
    low, high = jnp.float32(clip)
    ratio = probability_ratio(logprobs, old_logprobs)
    weight = lax.stop_gradient(jnp.clip(ratio, 1 - low, 1 + high))
    return reinforce(logprobs, weight * advantages)


@jax.jit
def sapo(
    logprobs: PerToken, old_logprobs: PerToken, advantages: PerToken, tau: Pair
) -> Float32[Array, "B T"]:
    """Soft adaptive policy optimisation: a smooth gate instead of the clip.

        L_t = -A_t·4/τ·σ(τ·(ρ_t - 1))    τ = `tau`[0] where A_t > 0, `tau`[1] elsewhere

    At ρ = 1 the gradient is that of REINFORCE. Source: https://arxiv.org/abs/2511.20347.
    """
    advantages = jnp.float32(advantages)
    is_positive = advantages > 0
    tau_positive, tau_other = jnp.float32(tau)
    tau_t = jnp.where(is_positive, tau_positive, tau_other)
    gate = jax.nn.sigmoid(tau_t * (probability_ratio(logprobs, old_logprobs) - 1))
    return -advantages * gate * 4 / tau_t
