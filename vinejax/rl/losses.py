"""Per-token losses of policy and value, and estimates of the KL divergence.

The functions neither mask nor average. The learner sums over response tokens and divides once by
their global number, so microbatches, packing and the number of devices cannot change the result.
Padding must have finite log-probabilities, because 0 · NaN is NaN, in a gradient too.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Real, ScalarLike

from vinejax.core.arguments import library

EXP_LIMIT = 40.0  # nats; float32 can still hold (e^40)², which the norm of a gradient contains


def _finite(exp: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """`exp`(x) up to x = `EXP_LIMIT`, and for larger x the tangent at `EXP_LIMIT`.

    `exp` is the function exp or expm1.

    float32 overflows at e^89, whereas here every finite x has a finite value and gradient. So a
    clipped or capped term, whose gradient is multiplied by 0, adds no NaN.
    """
    beyond = jnp.maximum(x - EXP_LIMIT, 0.0)
    return exp(jnp.minimum(x, EXP_LIMIT)) + math.exp(EXP_LIMIT) * beyond


@jax.jit
def probability_ratio(
    logprobs: Real[Array, "*shape"], old_logprobs: Real[Array, "*shape"]
) -> Float32[Array, "*shape"]:
    """Ratio of every token's probability to its probability under the policy that sampled it.

        ρ = exp(d)    d = logπ - logπ_old;    for d > 40: e^40·(1 + d - 40), which does not overflow

    Args and shapes: as for `ppo_clip`.
    """
    return _finite(jnp.exp, jnp.float32(logprobs) - jnp.float32(old_logprobs))


@library()
@jax.jit
def ppo_clip(
    logprobs: Real[Array, "*shape"],
    old_logprobs: Real[Array, "*shape"],
    advantages: Real[Array, "*shape"],
    clip: ScalarLike | Sequence[ScalarLike],
    dual_clip: ScalarLike | None = None,
) -> Float32[Array, "*shape"]:
    """Clipped policy loss of every token, to be minimised.

        L = max(-A·ρ, -A·clip(ρ, 1 - ε_low, 1 + ε_high))    ρ: `probability_ratio`

    At ρ = 1 the gradient is that of REINFORCE, -A·∇logπ. A token whose ratio has moved past the
    bound, in the direction of its advantage, has gradient 0. With `dual_clip`, L is at most -A·c
    where A < 0.

    Args:
      logprobs: [B, T], log-probability of each token under the current policy, in nats.
      old_logprobs: [B, T], the same under the policy that sampled it.
      advantages: [B, T].
      clip: ε, or the pair (ε_low, ε_high).
      dual_clip: c, greater than 1; None: no bound.

    Returns:
      float32 [B, T].

    Source: https://arxiv.org/abs/1707.06347, equation 7; VinePPO's code,
    `trainers/ppo_trainer.py:892-921`, which has one ε of 0.2. The pair is "clip-higher" of
    https://arxiv.org/abs/2503.14476, and c is the dual clip of https://arxiv.org/abs/1912.09729.

    Example:
      >>> vinejax.ppo_clip([[0.0, 1.0]], [[0.0, 0.0]], advantages=[[2.0, 2.0]], clip=0.25)
      Array([[-2. , -2.5]], dtype=float32)
    """
    low, high = jnp.broadcast_to(jnp.float32(clip), 2)
    advantages = jnp.float32(advantages)
    ratio = probability_ratio(logprobs, old_logprobs)
    clipped_ratio = jnp.clip(ratio, 1 - low, 1 + high)
    loss = jnp.maximum(-advantages * ratio, -advantages * clipped_ratio)
    if dual_clip is None:
        return loss
    return jnp.where(advantages < 0, jnp.minimum(loss, -advantages * dual_clip), loss)


@jax.jit
def is_clipped(
    logprobs: Real[Array, "*shape"],
    old_logprobs: Real[Array, "*shape"],
    advantages: Real[Array, "*shape"],
    clip: ScalarLike | Sequence[ScalarLike],
    dual_clip: ScalarLike | None = None,
) -> Bool[Array, "*shape"]:
    """Tokens for which `ppo_clip` takes the clipped term, and which therefore have no gradient.

        A > 0 and ρ > 1 + ε_high,  or  A < 0 and (ρ < 1 - ε_low or ρ > c)

    A token whose ratio has moved against its advantage keeps its whole gradient, so it is not
    clipped. Nor is a token with advantage 0, which has no gradient in any case.

    Args and shapes: as for `ppo_clip`. Returns bool [B, T].

    Source: VinePPO's code, `trainers/ppo_trainer.py:936-938`, which compares the two terms of the
    maximum.
    """
    low, high = jnp.broadcast_to(jnp.float32(clip), 2)
    ratio = probability_ratio(logprobs, old_logprobs)
    advantages = jnp.float32(advantages)
    outside = ratio < 1 - low
    if dual_clip is not None:
        outside |= ratio > dual_clip
    return ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & outside)


@jax.jit
def reinforce(
    logprobs: Real[Array, "*shape"], advantages: Real[Array, "*shape"]
) -> Float32[Array, "*shape"]:
    """Policy loss of every token without a probability ratio, to be minimised.

        L = -A·logπ

    Off-policy, a baseline below the mean reward keeps training stable.

    Args:
      logprobs: [B, T], log-probability of each token under the current policy, in nats.
      advantages: [B, T].

    Returns:
      float32 [B, T].

    Source: AsymRE, https://arxiv.org/abs/2506.20520, with A = r - (mean r + δV), δV < 0.
    """
    return -jnp.float32(advantages) * jnp.float32(logprobs)


@jax.jit
def dpo_positive(
    chosen: Real[Array, "B"],
    rejected: Real[Array, "B"],
    ref_chosen: Real[Array, "B"],
    ref_rejected: Real[Array, "B"],
    beta: ScalarLike,
    penalty: ScalarLike = 0.0,
) -> Float32[Array, "B"]:
    """Preference loss of every pair of solutions, to be minimised.

        L = -logσ(β·z)    z = (w - l) - (w_ref - l_ref) - λ·max(0, w_ref - w)

    The last term keeps w from falling below w_ref, which the difference w - l alone would allow.

    Args:
      chosen: [B], w: log-probability of the better solution, the sum over its tokens, in nats.
      rejected: [B], l: log-probability of the worse solution.
      ref_chosen: [B], w_ref: log-probability of the better solution under the reference model.
      ref_rejected: [B], l_ref: log-probability of the worse solution under the reference model.
      beta: β, greater than 0.
      penalty: λ; 0 gives DPO.

    Returns:
      float32 [B].

    Source: DPO-Positive, https://arxiv.org/abs/2402.13228; VinePPO's code,
    `trainers/dpo_positive_trainer.py:636-651`.
    """
    w, l, w_ref, l_ref = map(jnp.float32, (chosen, rejected, ref_chosen, ref_rejected))  # noqa: E741
    z = (w - l) - (w_ref - l_ref) - penalty * jnp.maximum(0.0, w_ref - w)
    return -jax.nn.log_sigmoid(beta * z)


@library()
@jax.jit
def value_clip(
    values: Real[Array, "*shape"],
    old_values: Real[Array, "*shape"],
    returns: Real[Array, "*shape"],
    clip: ScalarLike,
) -> Float32[Array, "*shape"]:
    """Clipped squared error of every value, to be minimised.

        L = ½·max((V - G)², (clip(V, V_old - ε, V_old + ε) - G)²)

    Args:
      values: [B, T], the critic's current values V.
      old_values: [B, T], the critic's values V_old when the episodes were sampled.
      returns: [B, T], the targets G.
      clip: ε, in units of value.

    Returns:
      float32 [B, T].

    Source: VinePPO's code, `trainers/ppo_trainer.py:1003-1017` (ε = 0.2), which also averages.

    Example:
      >>> vinejax.value_clip([[0.5]], old_values=[[0.0]], returns=[[1.0]], clip=0.25)
      Array([[0.28125]], dtype=float32)
    """
    values, old_values, returns = map(jnp.float32, (values, old_values, returns))
    clip = jnp.float32(clip)
    clipped_values = jnp.clip(values, old_values - clip, old_values + clip)
    return 0.5 * jnp.maximum((values - returns) ** 2, (clipped_values - returns) ** 2)


@library()
@jax.jit(static_argnames="kind")
def kl(
    logprobs: Real[Array, "*shape"], ref_logprobs: Real[Array, "*shape"], kind: str = "k1"
) -> Float32[Array, "*shape"]:
    """Estimate of KL(π ‖ π_ref) at every token, from the token that π sampled.

        k1 = -d    k2 = ½·d²    k3 = exp(d) - d - 1    d = logπ_ref - logπ

    k1 and k3 are unbiased; k2 and k3 are never negative. k1 is for logging and for rewards, since
    its expected gradient is 0. For d > 40, the tangent replaces exp(d) as in `probability_ratio`.

    Args:
      logprobs: [B, T], log-probability of each token under π, in nats.
      ref_logprobs: [B, T], the same under π_ref.
      kind: 'k1', 'k2' or 'k3'.

    Returns:
      float32 [B, T], not clamped.

    Raises:
      ValueError: for any other `kind`.

    Source: http://joschu.net/blog/kl-approx.html; VinePPO's code, `trainers/ppo_trainer.py:907-925`
    (k3 is its `control_variate`), which clamps to [0, 10]. Here `learner/policy.py` clamps.

    Example:
      >>> vinejax.kl([[-1.0, -2.0]], ref_logprobs=[[-1.0, -1.5]], kind="k2")
      Array([[0.   , 0.125]], dtype=float32)
    """
    difference = jnp.float32(ref_logprobs) - jnp.float32(logprobs)
    if kind == "k1":
        return -difference
    if kind == "k2":
        return 0.5 * difference**2
    if kind == "k3":
        # For small d the result is about ½d². In exp(d), float32 would round it away beside the 1;
        # expm1 keeps it.
        return _finite(jnp.expm1, difference) - difference
    raise ValueError(f"unknown kind {kind!r}: use 'k1', 'k2' or 'k3'")
