"""Monte Carlo values of states, returns, and how well values of any kind explain returns.

The letters are those of `advantages.py`.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Integer, Shaped

from vinejax.core.arguments import library
from vinejax.rl.masked import masked_mean

ROUNDING = 1e-5  # relative error of returns in float32


@library(counts=(0, "M"))
@jax.jit
def mc_values(
    returns: Shaped[Array, "B C M"], counts: Integer[Array, "B C"]
) -> Float32[Array, "B C"]:
    """Value of every state: the mean return of the rollouts that start there.

        V(s) = 1/m · Σᵢ Rᵢ    i = 1..m,  m = counts[s] <= M

    Args:
      returns: [B, C, M] of any real dtype, the graded return of each rollout of s_0 .. s_{C-1}.
      counts: int [B, C], the number m of rollouts that each state has. Other entries of `returns`
        are never read.

    Returns:
      float32 [B, C], 0 where `counts` is 0.

    Source: the paper, section 4; VinePPO's code,
    `episode_generators/math_episode_generator_with_mc_advantages.py:403-432`. Counts may differ
    between states here; the released runs of that code always have M = 9.

    Example:
      >>> returns = [[[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]]  # 3 rollouts of s_0, 2 of s_1
      >>> vinejax.mc_values(returns, [[3, 2]])
      Array([[0.6666667, 1.       ]], dtype=float32)
    """
    is_rollout = jnp.arange(returns.shape[-1]) < counts[..., None]
    return masked_mean(returns, is_rollout, axis=-1)


def returns_to_go(rewards: Sequence[float], gamma: float) -> np.ndarray:
    """f64[C] the discounted return of an episode from the start of each step on.

    G_c = r_c + γ·G_{c+1}
    """
    returns, after = np.zeros(len(rewards)), 0.0
    for c in reversed(range(len(rewards))):
        returns[c] = after = rewards[c] + gamma * after
    return returns


def explained_variance(values: np.ndarray, returns: np.ndarray) -> float | None:
    """The share of the variance of returns that values explain, computed by NumPy.

        1 - Var(G - V) / Var(G)

    It is 1 if V = G + constant, 0 if V tells nothing, and negative if V is worse than a constant.

    Args:
      values: [S], V of S states.
      returns: [S], G, a return that was observed after each of them.

    Returns:
      None if all returns are equal. They may differ by rounding, as A + V does in float32.
    """
    values, returns = np.asarray(values, np.float64), np.asarray(returns, np.float64)
    if returns.size == 0 or np.ptp(returns) <= ROUNDING * np.abs([values, returns]).max():
        return None
    return float(1 - np.var(returns - values) / np.var(returns))
