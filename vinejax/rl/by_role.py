"""Step advantages from values in two roles: the outcome of a step, and its baseline.

The advantage of step c reads two values: V(s_{c+1}) is the outcome of the step, and V(s_c) is its
baseline. The two roles allow different averages: outcomes are averaged over later states, and
baselines over earlier states. Letters are those of `advantages.py`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Integer, Real, ScalarLike, Shaped

from vinejax.core.arguments import library
from vinejax.rl.advantages import step_rewards


@library(num_steps=(0, "C"))
@jax.jit
def role_advantages(
    values: Real[Array, "B C"],
    rewards: Shaped[Array, "B"] | Shaped[Array, "B C"],
    num_steps: Integer[Array, "B"],
    lam: ScalarLike = 0.0,
    filter: ScalarLike = 0.0,
    gamma: ScalarLike = 1.0,
    is_sampled: Bool[Array, "B C"] | None = None,
    prior: Real[Array, "B C"] | None = None,
    weight: ScalarLike = 1.0,
) -> Float32[Array, "B C"]:
    """Advantage of every reasoning step, from values averaged over later and earlier states.

        A_c = Q_c - b'_c
        Q_c = r_c + γ·((1 - λ)·V(s_{c+1}) + λ·Q_{c+1})      Q_n = V(s_n) = 0
        b_c = (1 - w)·V(s_c) + w·(b_{c-1} - r_{c-1}) / γ    b_0 = V(s_0)
        b'_c = (1 - μ)·b_c + μ·v(s_c)

    With λ = w = μ = 0 this is `step_advantages`; with λ = 1 it is the return minus a baseline.
    Q averages the errors of later values, and b averages the errors of earlier values. Where values
    seldom change, and V are unbiased means of M rollouts, the variance of Q is multiplied by
    (1 - λ)/(1 + λ) and the variance of b by (1 - w)/(1 + w). The price: where values do change, the
    changes at the solution's later steps enter Q as noise, and those at earlier steps enter b.

    Args:
      values: [B, C], V(s_0) .. V(s_{n-1}) in each row. Entries past n, and entries of states
        without a value, are never read.
      rewards: [B] or [B, C], as for `step_advantages`.
      num_steps: int [B], 0 <= n <= C.
      lam: λ, the weight of later values in Q.
      filter: w, the weight of earlier values in b.
      gamma: γ, the discount per step. It must be above 0 if w is.
      is_sampled: bool [B, C], the states that have a value; None: all of them. Where s_{c+1} has
        none, Q_c is r_c + γ·Q_{c+1}. Where s_c has none, b_c is (b_{c-1} - r_{c-1}) / γ, and before
        the first state with a value b'_c is v(s_c), or 0 without `prior`.
      prior: [B, C], learned values v; None: there are none.
      weight: μ, the weight of v in b'.

    Returns:
      float32 [B, C], 0 past `num_steps`.

    Source: ours. The average over later values is the λ-return of Sutton and Barto, "Reinforcement
    Learning", 2nd edition, section 12.1. ComMCS, https://arxiv.org/abs/2508.10539, also combines
    estimates of a step and of later ones.

    Example:
      >>> values = [[0.25, 0.75, 0.5]]
      >>> vinejax.role_advantages(values, [1.0], num_steps=[3], lam=0.5, filter=0.5)
      Array([[0.5 , 0.25, 0.5 ]], dtype=float32)
    """
    is_step = jnp.arange(values.shape[1]) < num_steps[:, None]
    has_value = is_step if is_sampled is None else is_step & is_sampled
    rewards = step_rewards(rewards, num_steps, values.shape[1])
    values = jnp.where(has_value, jnp.float32(values), 0.0)
    later = role_outcomes(values, rewards, has_value, lam, gamma)
    baseline, is_known = role_baselines(values, rewards, has_value, filter, gamma)
    if prior is not None:
        v = jnp.where(is_step, jnp.float32(prior), 0.0)
        baseline = jnp.where(is_known, (1 - weight) * baseline + weight * v, v)
    return jnp.where(is_step, later - baseline, 0.0)


@jax.jit
def role_outcomes(
    values: Float32[Array, "B C"],
    rewards: Float32[Array, "B C"],
    has_value: Bool[Array, "B C"],
    lam: ScalarLike,
    gamma: ScalarLike,
) -> Float32[Array, "B C"]:
    """Q_c of `role_advantages`; 0 past the last step.

    `rewards` are those of steps, and must be 0 past the last step. `has_value` tells which states
    have a value in `values`, whose other entries are not read.
    """
    lam, gamma = jnp.asarray(lam, jnp.float32), jnp.asarray(gamma, jnp.float32)

    def backwards(after: jax.Array, step: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        value, reward, is_sampled = step
        q = reward + gamma * after
        return jnp.where(is_sampled, (1 - lam) * value + lam * q, q), q

    steps = values.T, rewards.T, has_value.T
    return jax.lax.scan(backwards, jnp.zeros(values.shape[0]), steps, reverse=True)[1].T


@jax.jit
def role_baselines(
    values: Real[Array, "B C"],
    rewards: Real[Array, "B C"],
    is_sampled: Bool[Array, "B C"],
    filter: ScalarLike,
    gamma: ScalarLike,
) -> tuple[Float32[Array, "B C"], Bool[Array, "B C"]]:
    """(b_c of `role_advantages`, whether any of s_0 .. s_c has a value).

    If none of these states has a value, b_c is 0.
    """
    filter, gamma = jnp.asarray(filter, jnp.float32), jnp.asarray(gamma, jnp.float32)
    undiscounted = jnp.where(gamma > 0, gamma, 1.0)  # no division by 0

    def forwards(
        before: tuple[jax.Array, jax.Array], step: tuple[jax.Array, ...]
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        carried, is_known = before
        value, reward, is_sampled = step
        mixed = jnp.where(is_known, (1 - filter) * value + filter * carried, value)
        b, is_known = jnp.where(is_sampled, mixed, carried), is_known | is_sampled
        after = jnp.where(is_known, (b - reward) / undiscounted, 0.0)
        return (after, is_known), (b, is_known)

    first = jnp.zeros(values.shape[0]), jnp.zeros(values.shape[0], bool)
    steps = jnp.where(is_sampled, jnp.float32(values), 0.0).T, jnp.float32(rewards).T, is_sampled.T
    _, (b, is_known) = jax.lax.scan(forwards, first, steps)
    return b.T, is_known.T
