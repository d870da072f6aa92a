"""Single-stream policy optimization: values of problems, updated after every single solution.

Letters in addition to those of `rl/advantages.py`:

    P  problems
    α  weighted sum of a problem's rewards r, with a pseudo-count; β: the same for 1 - r
    v  value of a problem: the expected reward of a solution by the current policy
    D  drift of the policy on a problem since its last draw
    ρ  weight that the earlier rewards of a problem keep at its next draw

Rewards lie in [0, 1]. "The paper" is https://arxiv.org/abs/2509.13232 (v2), and "the authors' code"
is verl-project/verl-recipe at 48ea0a7, `spo/spo_ray_trainer.py`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Real, ScalarLike

HALVING_DRIFT = 0.06  # drift that halves ρ before it is clipped, nats per token
LEAST_RETENTION = 0.875  # lower bound of ρ
MOST_RETENTION = 0.96  # upper bound of ρ


@jax.jit
def first_counts(
    totals: Real[Array, "P"], samples: ScalarLike, pseudo_counts: ScalarLike
) -> tuple[Float32[Array, "P"], Float32[Array, "P"]]:
    """The initial α and β of problems, from solutions by the policy with which a run starts.

        α = N·(S + ½) / (n + 1)    β = N·(n - S + ½) / (n + 1)

    Args:
      totals: [P], S, the sum of the rewards of each problem's solutions.
      samples: n, number of solutions per problem; with 0, v = ½ for every problem.
      pseudo_counts: N, sum of α and β.

    Returns:
      (α, β), each float32 [P].

    Source: the paper, equation 6; the authors' code, lines 365-372, with N = 1 / (1 - 0.875) = 8.
    Without solutions the authors' code sets α = β = ½, and then the first reward dominates v.
    """
    share = (jnp.float32(totals) + 0.5) / (samples + 1)
    return jnp.float32(pseudo_counts * share), jnp.float32(pseudo_counts * (1 - share))


@jax.jit
def tracked_values(alpha: Float32[Array, "P"], beta: Float32[Array, "P"]) -> Float32[Array, "P"]:
    """The value v = α / (α + β), the mean of Beta(α, β). Source: the paper, equation 5."""
    return alpha / (alpha + beta)


@jax.jit
def mean_drift(
    now: Float32[Array, "B T"], then: Float32[Array, "B T"], mask: Bool[Array, "B T"]
) -> Float32[Array, "B"]:
    """The drift D, the mean of |log π_now - log π_then| over a response's tokens.

    Args:
      now: [B, T], log-probabilities of each problem's last response under the current policy.
      then: [B, T], log-probabilities of the same responses under the policies that sampled them.
      mask: bool [B, T], tokens of the response.

    Returns:
      float32 [B], in nats per token; 0 for a row without tokens.

    Source: the authors' code, lines 286-287. The paper, section 4.1, names the KL between the
    current policy and the policy that last acted on the problem. The mean of absolute differences
    is at least the estimate of that KL from the same tokens. The authors' code compares the
    policies after the updates of the two iterations. Here, as in the paper's algorithm 1, we
    compare the policies that sampled the solutions. The rewards belong to these policies, and
    `then` needs no further forward pass.
    """
    distance = jnp.where(mask, jnp.abs(now - then), 0.0)
    return jnp.sum(distance, axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1)


@jax.jit
def retention(drift: Float32[Array, "B"]) -> Float32[Array, "B"]:
    """The retention ρ = clip(2^(-D / 0.06), 0.875, 0.96).

    Source: the paper, section 4.1. The three numbers are from the authors' code, lines 289-292.
    """
    return jnp.clip(2.0 ** (-drift / HALVING_DRIFT), LEAST_RETENTION, MOST_RETENTION)


@jax.jit
def updated_counts(
    alpha: Float32[Array, "B"],
    beta: Float32[Array, "B"],
    rewards: Float32[Array, "B"],
    drift: Float32[Array, "B"],
) -> tuple[Float32[Array, "B"], Float32[Array, "B"]]:
    """The counts (α, β) after a further solution, α ← ρ·α + r and β ← ρ·β + 1 - r.

    The advantages of the iteration use the old counts.

    Source: the paper, equation 5; the authors' code, lines 664-665.
    """
    kept = retention(drift)
    return kept * alpha + rewards, kept * beta + (1 - rewards)


@jax.jit
def draw_weights(values: Float32[Array, "P"], explore: ScalarLike) -> Float32[Array, "P"]:
    """The weights w = √(v·(1 - v)) + ε with which problems are drawn; `explore` is ε.

    Source: the paper, equation 11; the authors' code, lines 381-390, with ε = 0.05.
    """
    return jnp.sqrt(values * (1 - values)) + explore


@jax.jit
def batch_advantages(
    rewards: Float32[Array, "B"], values: Float32[Array, "B"]
) -> Float32[Array, "B"]:
    """Advantages of one solution per problem, normalised over all solutions of an iteration.

        a = r - v    A = (a - mean a) / (std a + 1e-8)    (std a)² = Σ (a - mean a)² / (B - 1)

    Mean and standard deviation are over solutions, whatever their lengths. If all a are equal,
    A = 0, because the division would scale up rounding errors.

    Source: the paper, equations 8 and 9; the authors' code, lines 547-551, in which a single
    solution gives NaN.
    """
    raw = rewards - values
    centred = raw - jnp.mean(raw)
    variance = jnp.sum(centred**2) / max(raw.size - 1, 1)
    is_flat = jnp.max(raw) == jnp.min(raw)
    return jnp.where(is_flat, 0.0, centred / (jnp.sqrt(variance) + 1e-8))
