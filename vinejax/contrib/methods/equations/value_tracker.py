"""Single-stream policy optimization: the value of a problem from one solution at a time.

Letters, beside those of `advantages.py`:

    P  problems
    α  weighted sum of a problem's rewards, β of 1 - reward, both with pseudo-counts
    v  value of a problem: the expected reward of a solution by the current policy
    D  drift of the policy on a problem since it was last drawn
    ρ  weight that all earlier rewards of a problem keep when it is drawn again

Rewards lie in [0, 1]. "The paper" is https://arxiv.org/abs/2509.13232 (v2), and "the authors' code"
is verl-project/verl-recipe at 48ea0a7, `spo/spo_ray_trainer.py`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Real, ScalarLike

HALVING_DRIFT = 0.06  # nats per token that halve ρ, before it is clipped to these bounds:
LEAST_RETENTION = 0.875
MOST_RETENTION = 0.96


@jax.jit
def first_counts(
    totals: Real[Array, "P"], samples: ScalarLike, pseudo_counts: ScalarLike
) -> tuple[Float32[Array, "P"], Float32[Array, "P"]]:
    """α and β of problems at the start of a run, from solutions of the start's policy.

        α = N·(S + ½) / (n + 1)    β = N·(n - S + ½) / (n + 1)

    Args:
      totals: [P], S, the sum of the rewards of a problem's solutions.
      samples: n, the number of solutions per problem; with 0 every value is ½.
      pseudo_counts: N, what α and β sum to.

    Returns:
      float32 [P], float32 [P].

    Source: the paper, equation 6; the authors' code, lines 365-372, with N = 1 / (1 - 0.875) = 8.
    Without solutions it sets α = β = ½ instead, which the first reward outweighs.
    """
    share = (jnp.float32(totals) + 0.5) / (samples + 1)
    return jnp.float32(pseudo_counts * share), jnp.float32(pseudo_counts * (1 - share))


@jax.jit
def tracked_values(alpha: Float32[Array, "P"], beta: Float32[Array, "P"]) -> Float32[Array, "P"]:
    """v = α / (α + β), the mean of the Beta(α, β) distribution. Source: the paper, equation 5."""
    return alpha / (alpha + beta)


@jax.jit
def mean_drift(
    now: Float32[Array, "B T"], then: Float32[Array, "B T"], mask: Bool[Array, "B T"]
) -> Float32[Array, "B"]:
    """D = mean over a response's tokens of |log π_now - log π_then|; 0 for a row without tokens.

    Args:
      now: [B, T], log-probabilities of each problem's last response by the current policy.
      then: [B, T], by the policy that sampled it.
      mask: bool [B, T], the response's tokens.

    Returns:
      float32 [B], in nats per token.

    Source: the authors' code, lines 286-287. The paper, section 4.1, names the KL between the
    current policy and the policy that last acted on the problem; the mean of absolute differences
    is at least its estimate from the same tokens. The authors' code compares the policies after the
    updates of the two iterations. Here they are those that sampled, as in the paper's algorithm 1:
    the rewards are theirs, and `then` needs no further forward pass.
    """
    distance = jnp.where(mask, jnp.abs(now - then), 0.0)
    return jnp.sum(distance, axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1)


@jax.jit
def retention(drift: Float32[Array, "B"]) -> Float32[Array, "B"]:
    """ρ = clip(2^(-D / 0.06), 0.875, 0.96).

    Source: the paper, section 4.1; the authors' code, lines 289-292, has the three numbers.
    """
    return jnp.clip(2.0 ** (-drift / HALVING_DRIFT), LEAST_RETENTION, MOST_RETENTION)


@jax.jit
def updated_counts(
    alpha: Float32[Array, "B"],
    beta: Float32[Array, "B"],
    rewards: Float32[Array, "B"],
    drift: Float32[Array, "B"],
) -> tuple[Float32[Array, "B"], Float32[Array, "B"]]:
    """α ← ρ·α + r and β ← ρ·β + 1 - r, after the advantages were taken with the old ones.

    Source: the paper, equation 5; the authors' code, lines 664-665.
    """
    kept = retention(drift)
    return kept * alpha + rewards, kept * beta + (1 - rewards)


@jax.jit
def draw_weights(values: Float32[Array, "P"], explore: ScalarLike) -> Float32[Array, "P"]:
    """w = √(v·(1 - v)) + ε, what the chance of drawing a problem is proportional to.

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
    A = 0: what rounding leaves of their differences would be scaled up.

    Source: the paper, equations 8 and 9; the authors' code, lines 547-551, where a single solution
    gives NaN.
    """
    raw = rewards - values
    centred = raw - jnp.mean(raw)
    variance = jnp.sum(centred**2) / max(raw.size - 1, 1)
    is_flat = jnp.max(raw) == jnp.min(raw)
    return jnp.where(is_flat, 0.0, centred / (jnp.sqrt(variance) + 1e-8))
