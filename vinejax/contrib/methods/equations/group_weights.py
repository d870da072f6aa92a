"""Rewards and weights of a group's solutions by their length, likelihood or preference level."""

from collections.abc import Sequence

import numpy as np

Numbers = Sequence[float] | np.ndarray


def unlikely_rewards(rewards: Numbers, logprobs: Numbers, beta: float) -> np.ndarray:
    """Rewards of a group, reduced by a part that grows with a solution's likelihood.

        r_i·(1 - β·k_i / n)    k_i: the number of solutions of the n that are less likely than i

    Args:
      rewards: [n].
      logprobs: [n], mean log-probability of each solution's tokens, in nats. The first of two equal
        ones counts as the less likely.
      beta: β, the part that a solution loses at k = n.

    Returns:
      float64 [n].

    Source: unlikeliness reward, https://arxiv.org/abs/2506.02355;
    AndreHe02/rewarding-unlikely-release at ca1cff0, `ray_lean_trainer._compute_advantages`.
    """
    rank = np.argsort(np.argsort(logprobs, kind="stable"), kind="stable")
    return np.asarray(rewards, np.float64) * (1 - beta * rank / len(rank))


def decoupled_weights(
    logprobs: Numbers, is_right: Numbers, lengths: Numbers, lam: float, tau: float
) -> np.ndarray:
    """Weights of the gradients of a group's mean log-probabilities.

        right:  exp((1 - l_i) / Λ) / Σ over right solutions of the same
        wrong:  -exp(s_i / τ) / Σ over wrong solutions of the same

    The length of a right solution decides its share among the right ones. No right solution has a
    negative weight.

    Args:
      logprobs: [n], mean log-probability s of each solution's tokens, in nats.
      is_right: bool [n].
      lengths: [n], l, tokens of each solution as a part of the token limit.
      lam: Λ; a smaller one gives more weight to the shortest right solution.
      tau: τ; a smaller one gives more weight to the likeliest wrong solution.

    Returns:
      float64 [n], all 0 if all solutions are right or all are wrong.

    Source: DRPO, https://arxiv.org/abs/2510.04474; Optimization-AI/DRPO at 405f702,
    `core_algos.compute_policy_loss_drpo`, whose gradient this is.
    """
    right = np.asarray(is_right, bool)
    if right.all() or not right.any():
        return np.zeros(len(right))
    score = np.where(right, (1 - np.asarray(lengths)) / lam, np.asarray(logprobs) / tau)
    weights = np.zeros(len(right))
    for kind, sign in ((right, 1.0), (~right, -1.0)):
        share = np.exp(score[kind] - score[kind].max())
        weights[kind] = sign * share / share.sum()
    return weights


def preference_weights(
    levels: Numbers, groups: Numbers, log_ratios: Numbers, beta: float, anisotropy: float
) -> np.ndarray:
    """The negative gradient, -∂L/∂ℓ, of the preference loss over pairs with different levels.

        L = mean of -log σ(β_i·(ℓ_i - ℓ_j)) over pairs with level i < level j in the same group
        β_i = β·a where level i is 1, the best, β elsewhere

    Args:
      levels: int [B], preference levels from 1; a lower level is preferred.
      groups: int [B], the group of each solution.
      log_ratios: [B], ℓ, mean over tokens of log π/π_ref, in nats.
      beta: β.
      anisotropy: a.

    Returns:
      float64 [B], with the sum 0; 0 for a solution without a pair.

    Source: TRPA, XueruiSu/Trust-Region-Preference-Approximation at f372585,
    `core_algos.compute_pairwise_policy_loss`.
    """
    level, group, ratio = (np.asarray(x) for x in (levels, groups, log_ratios))
    is_pair = (group[:, None] == group) & (level[:, None] < level)
    scale = beta * np.where(level == 1, anisotropy, 1.0)[:, None]
    # σ(-h) = (1 - tanh(h / 2)) / 2, which cannot overflow.
    falling = 0.5 * (1 - np.tanh(0.5 * scale * (ratio[:, None] - ratio)))
    pull = np.where(is_pair, scale * falling, 0.0)
    return (pull.sum(axis=1) - pull.sum(axis=0)) / max(int(is_pair.sum()), 1)
