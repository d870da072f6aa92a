"""Advantages of reasoning steps, of tokens and of whole solutions, from rewards and values.

Letters of reinforcement learning, each with one meaning in the whole package:

    B  sequences: sampled solutions, one per row
    C  reasoning steps of a solution
    M  Monte Carlo rollouts per state (the paper's K)
    T  tokens of a row

The states of a solution with n steps are s_0 (the prompt), s_1, ..., s_n. The state s_n is
terminal: V(s_n) = 0, and s_n has no entry in `values`.

In every docstring "the paper" is VinePPO, https://arxiv.org/abs/2410.01679 (v2), and "VinePPO's
code" is McGill-NLP/VinePPO at efe7228, with paths from `src/treetune/`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Integer, Real, ScalarLike, Shaped

from vinejax.core.arguments import library
from vinejax.rl.masked import masked_mean, masked_sum


def _next(x: Float32[Array, "B N"]) -> Float32[Array, "B N"]:
    """Shifts rows to the left: entry i becomes x[:, i + 1], and the last entry becomes 0."""
    return jnp.pad(x, ((0, 0), (0, 1)))[:, 1:]


def step_rewards(
    rewards: Shaped[Array, "B"] | Shaped[Array, "B C"], num_steps: Integer[Array, "B"], steps: int
) -> Float32[Array, "B C"]:
    """Rewards of C = `steps` steps, which are 0 past `num_steps`.

    If `rewards` is [B], each number is the reward of the last step of its solution.
    """
    step = jnp.arange(steps)
    is_paid = step < num_steps[:, None]
    if rewards.ndim == 1:
        rewards = rewards[:, None]
        is_paid = step == num_steps[:, None] - 1
    return jnp.where(is_paid, jnp.float32(rewards), 0.0)


@library(num_steps=(0, "C"))
@jax.jit
def step_advantages(
    values: Real[Array, "B C"],
    rewards: Shaped[Array, "B"] | Shaped[Array, "B C"],
    num_steps: Integer[Array, "B"],
    gamma: ScalarLike = 1.0,
) -> Float32[Array, "B C"]:
    """Advantage of every reasoning step: the expected return that it added.

        A_c = r_c + γ·V(s_{c+1}) - V(s_c)    V(s_n) = 0,  n = num_steps

    With γ = 1, the advantages of a solution's steps add up to its total reward minus V(s_0).

    Args:
      values: [B, C], V(s_0) .. V(s_{n-1}) in each row. Entries past n are never read.
      rewards: [B], the reward of each solution, paid with its last step; or [B, C], one per step.
        Any real dtype. Entries past n, and those of solutions without steps, are never read.
      num_steps: int [B], 0 <= n <= C.
      gamma: discount per step.

    Returns:
      float32 [B, C], 0 past `num_steps`.

    Source: the paper, section 4; VinePPO's code,
    `episode_generators/math_episode_generator_with_mc_advantages.py:395-401`, which fixes γ = 1.

    Example:
      >>> vinejax.step_advantages(values=[[0.25, 0.75, 0.5]], rewards=[1.0], num_steps=[3])
      Array([[ 0.5 , -0.25,  0.5 ]], dtype=float32)
    """
    is_step = jnp.arange(values.shape[1]) < num_steps[:, None]
    rewards = step_rewards(rewards, num_steps, values.shape[1])
    values = jnp.where(is_step, jnp.float32(values), 0.0)
    return rewards + jnp.float32(gamma) * _next(values) - values


@library(step_ids=(-1, "C-1"))
@jax.jit
def token_advantages(
    step_advantages: Real[Array, "B C"], step_ids: Integer[Array, "B T"]
) -> Float32[Array, "B T"]:
    """Gives every token the advantage of its step.

        A_t = A_{c(t)}    c(t) = step_ids[t]

    Args:
      step_advantages: [B, C].
      step_ids: int [B, T], the step c of each token, 0 <= c < C; -1 outside the response.

    Returns:
      float32 [B, T], 0 where `step_ids` is -1.

    Source: the paper, section 4; VinePPO's code,
    `episode_generators/math_episode_generator_with_mc_advantages.py:329-375`. That code finds the
    step of a token by the token's first character; here steps are made of tokens.

    Example:
      >>> vinejax.token_advantages([[0.5, -0.25]], step_ids=[[-1, 0, 0, 1, -1]])
      Array([[ 0.  ,  0.5 ,  0.5 , -0.25,  0.  ]], dtype=float32)
    """
    is_response = step_ids >= 0
    per_token = jnp.take_along_axis(step_advantages, jnp.where(is_response, step_ids, 0), axis=1)
    return jnp.where(is_response, jnp.float32(per_token), 0.0)


@library()
@jax.jit(static_argnames=("kind", "ddof", "scale"))
def group_advantages(
    rewards: Shaped[Array, "B"],
    group_ids: Integer[Array, "B"],
    kind: str = "grpo",
    ddof: int = 0,
    eps: ScalarLike = 1e-8,
    scale: str | None = None,
) -> Float32[Array, "B"]:
    """Advantage of every solution over its group, the solutions of the same problem.

        grpo:  A_i = (r_i - mean r) / (std r + ε)    mean and std of the group
        mean:  A_i = r_i - mean r
        rloo:  A_i = r_i - mean_{j≠i} r_j

    `scale` chooses the standard deviation that the differences are divided by, for any kind.

    Args:
      rewards: [B] of any real dtype.
      group_ids: int [B], equal for the members of a group: any 32-bit integers, in any order.
      kind: 'grpo', 'mean' or 'rloo'.
      ddof: 0 for the population's std, 1 for the sample's, as in TRL.
      eps: ε, which is added to the std; TRL has 1e-4.
      scale: 'group' for the std of the group, 'batch' for the std of all B rewards, 'none' for no
        division. None stands for 'group' if `kind` is 'grpo', and for 'none' otherwise.

    Returns:
      float32 [B], exactly 0 in groups whose rewards are all equal and in groups of one.

    Raises:
      ValueError: for any other `kind` or `scale`.

    Source: GRPO, https://arxiv.org/abs/2402.03300, section 4.1.2; RLOO,
    https://arxiv.org/abs/2402.14740. 'mean' is from Dr. GRPO, https://arxiv.org/abs/2503.20783, and
    `scale` is TRL's `scale_rewards`. The paper compares with GRPO and RLOO; VinePPO's code has none
    of these.

    Example:
      >>> rewards, problems = [1.0, 0.0, 0.0, 1.0, 1.0], [7, 7, 7, 8, 8]
      >>> vinejax.group_advantages(rewards, group_ids=problems, kind="rloo")
      Array([ 1. , -0.5, -0.5,  0. ,  0. ], dtype=float32)
    """
    rewards = jnp.float32(rewards)
    same = group_ids[:, None] == group_ids
    # The rounding error of the mean, divided by a std of nearly 0, would look like a signal.
    is_flat = jnp.all(~same | (rewards[:, None] == rewards), axis=1)
    if kind in ("grpo", "mean"):
        advantages = rewards - masked_mean(rewards, same, axis=1)
    elif kind == "rloo":
        others = same & ~jnp.eye(len(rewards), dtype=bool)
        advantages = rewards - masked_mean(rewards, others, axis=1)
    else:
        raise ValueError(f"unknown kind {kind!r}: use 'grpo', 'mean' or 'rloo'")
    scale = scale or ("group" if kind == "grpo" else "none")
    if scale not in ("group", "batch", "none"):
        raise ValueError(f"unknown scale {scale!r}: use 'group', 'batch' or 'none'")
    if scale != "none":
        variance = _variance(rewards, same if scale == "group" else jnp.ones_like(same), ddof)
        advantages = advantages / (jnp.sqrt(jnp.where(is_flat, 1.0, variance)) + eps)
    return jnp.where(is_flat, 0.0, advantages)


def _variance(
    rewards: Float32[Array, "B"], counted: Bool[Array, "B B"], ddof: int
) -> Float32[Array, "B"]:
    """The variance of the rewards that each row of `counted` selects."""
    deviations = rewards - masked_mean(rewards, counted, axis=1)
    freedom = jnp.maximum(counted.sum(axis=1) - ddof, 1)
    return masked_sum(deviations**2, counted, axis=1) / freedom


def overlong_penalty(
    lengths: Integer[np.ndarray, "B"], max_tokens: int, buffer: float
) -> Float32[np.ndarray, "B"]:
    """Penalty on a solution's reward, from 0 to -1, for a length near the token budget.

        P = clip((L - b - n) / b, -1, 0)    L = max_tokens, b = buffer, n = length

    Args:
      lengths: int [B], the number n of response tokens.
      max_tokens: L, the token budget of a response.
      buffer: b, the tokens at the end of the budget over which the penalty grows; 0: no penalty.

    Returns:
      float32 [B], computed by NumPy, so that a new number of solutions compiles no program.

    Source: https://arxiv.org/abs/2503.14476, equation 13 ("soft overlong punishment").
    """
    if buffer == 0:
        return np.zeros(len(lengths), np.float32)
    last = np.float32(buffer)
    over = (np.float32(max_tokens) - last - lengths.astype(np.float32)) / last
    return np.clip(over, np.float32(-1), np.float32(0))


@library()
@jax.jit
def gae(
    rewards: Shaped[Array, "B T"],
    values: Real[Array, "B T"],
    mask: Bool[Array, "B T"],
    gamma: ScalarLike,
    lam: ScalarLike,
) -> tuple[Float32[Array, "B T"], Float32[Array, "B T"]]:
    """Generalised advantage estimates and the returns that a critic learns.

        δ_t = r_t + γ·V_{t+1} - V_t    A_t = δ_t + γλ·A_{t+1}    return_t = A_t + V_t

    Consecutive True entries of `mask` are one episode. V and A are 0 after the end of an episode.
    A packed row holds several episodes.

    Args:
      rewards: [B, T] of any real dtype, the reward for taking token t.
      values: [B, T], the value of the state before token t is taken.
      mask: bool [B, T], response tokens. Other entries are never read.
      gamma: γ, the discount per token.
      lam: λ. With 0, A_t is δ_t; with 1, it is the whole return minus V_t.

    Returns:
      (advantages, returns), both float32 [B, T] and 0 outside the mask.

    Source: https://arxiv.org/abs/1506.02438, equation 16; VinePPO's code,
    `trainers/ppo_trainer.py:1093-1157`, which has one episode per row and runs with γ = λ = 1.

    Example:
      >>> rewards, values, mask = [[0.0, 0.0, 1.0]], [[0.5, 0.25, 0.75]], [[True, True, True]]
      >>> advantages, returns = vinejax.gae(rewards, values, mask, gamma=1.0, lam=1.0)
      >>> advantages, returns
      (Array([[0.5 , 0.75, 0.25]], dtype=float32), Array([[1., 1., 1.]], dtype=float32))
    """
    rewards = jnp.where(mask, jnp.float32(rewards), 0.0)
    values = jnp.where(mask, jnp.float32(values), 0.0)
    gamma, lam = jnp.float32(gamma), jnp.float32(lam)
    deltas = rewards + gamma * _next(values) - values

    def backwards(advantage, token):
        delta, is_response = token
        advantage = jnp.where(is_response, delta + gamma * lam * advantage, 0.0)
        return advantage, advantage

    after_last = jnp.zeros(deltas.shape[0], deltas.dtype)
    _, advantages = jax.lax.scan(backwards, after_last, (deltas.T, mask.T), reverse=True)
    return advantages.T, advantages.T + values
