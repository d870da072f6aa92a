"""Advantages and clip bounds by the entropy of the policy, and AEPO's clip with a gradient."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float32, Real, ScalarLike

from vinejax.rl.losses import probability_ratio

LEAST = 1e-8  # nats, lower bound of an entropy, so that its logarithm is finite


def relative_entropy(entropy: np.ndarray, mask: np.ndarray, quantile: float) -> np.ndarray:
    """The entropy before each token, scaled to [-1, 1] by comparison with all tokens of the mask.

        h = (log H - Q(log H)) / σ    σ² = mean (log H - Q)²
        h̃ = h / max h where h > 0,  h / |min h| elsewhere

    Args:
      entropy: f32[B, T], H before each token, in nats.
      mask: bool [B, T], the tokens that are compared.
      quantile: Q is this quantile of log H over the mask.

    Returns:
      float32 [B, T], 0 outside the mask.

    Source: HAPO, https://arxiv.org/abs/2509.16591 (v2), equations 5 to 13. The released code
    divides by min h, which is negative, so that low entropies get h̃ ≥ 0 as well.
    """
    by_token = np.zeros(mask.shape, np.float32)
    if not mask.any():
        return by_token
    logs = np.log(np.maximum(entropy[mask].astype(np.float64), LEAST))
    away = logs - np.quantile(logs, quantile, method="nearest")  # σ would cancel below
    highest, lowest = max(away.max(), LEAST), max(-away.min(), LEAST)
    by_token[mask] = np.where(away > 0, away / highest, away / lowest)
    return by_token


@jax.jit
def entropy_clip(
    logprobs: Real[Array, "*shape"],
    old_logprobs: Real[Array, "*shape"],
    advantages: Real[Array, "*shape"],
    relative: Real[Array, "*shape"],
    clip: tuple[Real[Array, ""] | float, Real[Array, ""] | float],
) -> tuple[Float32[Array, "*shape"], Bool[Array, "*shape"]]:
    """The loss with bounds and advantages that depend on entropy, and a mask of the clipped tokens.

        L = max(-A'·ρ, -A'·clip(ρ, 1 - ε_low', 1 + ε_high'))
        ε_low' = ε_low·(1 - h̃) where h̃ ≤ 0    ε_high' = ε_high·(1 + h̃) where h̃ > 0
        A' = A·(1 + h̃) where h̃ > 0 and ρ has left [1 - ε_low/2, 1 + ε_high/2],
             or h̃ ≤ 0 and ρ has not; else A

    The ratio ρ of a token of high entropy may rise above 1 + ε_high, and that of a token of low
    entropy may fall below 1 - ε_low.

    Args and shapes: as `rl.losses.ppo_clip`; relative is h̃, from `relative_entropy`.

    Source: HAPO, https://arxiv.org/abs/2509.16591 (v2), equations 5 to 13.
    """
    low, high = clip
    h, advantages = jnp.float32(relative), jnp.float32(advantages)
    ratio = probability_ratio(logprobs, old_logprobs)
    is_inside = (ratio >= 1 - low / 2) & (ratio <= 1 + high / 2)
    advantages = jnp.where((h > 0) != is_inside, advantages * (1 + h), advantages)
    low, high = low * jnp.where(h > 0, 1.0, 1 - h), high * jnp.where(h > 0, 1 + h, 1.0)
    clipped = (advantages > 0) & (ratio > 1 + high) | (advantages < 0) & (ratio < 1 - low)
    bounded = jnp.clip(ratio, 1 - low, 1 + high)
    return jnp.maximum(-advantages * ratio, -advantages * bounded), clipped


def token_group_advantages(
    rewards: np.ndarray, lengths: np.ndarray, groups: np.ndarray
) -> np.ndarray:
    """Advantage of each solution over its group, whose mean weighs solutions by their tokens.

        A_i = (r_i - mean r) / (std r + 1e-6)    mean and std over all tokens of the group

    Args:
      rewards, lengths, groups: [B], each solution's reward, number of tokens and group.

    Returns:
      float32 [B], exactly 0 in groups whose rewards are all equal.

    Source: HAPO, starriver030515/HAPO, `core_algos.compute_hapo_outcome_advantage`.
    """
    advantages = np.zeros(len(rewards), np.float32)
    for group in np.unique(groups):
        at = np.flatnonzero(groups == group)
        r, n = rewards[at].astype(np.float64), np.maximum(lengths[at], 1)
        if np.ptp(r) > 0:
            mean = np.average(r, weights=n)
            advantages[at] = (r - mean) / (np.average((r - mean) ** 2, weights=n) ** 0.5 + 1e-6)
    return advantages


def uncertain_advantages(
    advantages: np.ndarray, entropy: np.ndarray, mask: np.ndarray, weight: float
) -> np.ndarray:
    """Advantages that grow with the entropy before each token.

        A·(1 + α·(H - mean H) / std H)    std of the sample, or 1 where it is 0

    Args:
      advantages, entropy: [B, T].
      mask: bool [B, T], the tokens over which the mean and the std are taken.
      weight: α.

    Returns:
      float32 [B, T], 0 outside the mask.

    Source: AEPO, https://arxiv.org/abs/2510.14545; its code's policy loss.
    """
    by_token = np.zeros(mask.shape, np.float32)
    h = entropy[mask].astype(np.float64)
    std = h.std(ddof=1) if len(h) > 1 else 0.0
    if len(h):
        by_token[mask] = advantages[mask] * (1 + weight * (h - h.mean()) / (std or 1.0))
    return by_token


@jax.jit
def clip_with_gradient(
    logprobs: Real[Array, "B T"],
    old_logprobs: Real[Array, "B T"],
    advantages: Real[Array, "B T"],
    clip: Sequence[ScalarLike],
) -> Float32[Array, "B T"]:
    """PPO's clipped loss with a gradient also at the upper bound.

        L_t = max(-A_t·ρ_t, -A_t·clip(ρ_t, 1 - ε_low, (1 + ε_high)·ρ_t / sg[ρ_t]))

    The loss has PPO's value. Where A_t > 0, a token whose ratio is above the bound has the gradient
    of a token at the bound.

    Source: AEPO, https://arxiv.org/abs/2510.14545; its code's policy loss.
    """
    low, high = jnp.float32(clip)
    advantages = jnp.float32(advantages)
    ratio = probability_ratio(logprobs, old_logprobs)
    bound = (1 + high) * jnp.exp(logprobs - lax.stop_gradient(jnp.float32(logprobs)))
    bounded = jnp.where(ratio > 1 + high, bound, jnp.maximum(ratio, 1 - low))
    return jnp.maximum(-advantages * ratio, -advantages * bounded)
