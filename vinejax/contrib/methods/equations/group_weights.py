"""Rewards and weights of a group's solutions by their length or likelihood."""

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
    """Weight of each solution of a group in the gradient of DRPO's loss.

    An update ascends Σ_i weight_i·s_i, where s_i is the mean log-probability of solution i.

        right:  exp((1 - l_i) / Λ) / (Σ of exp((1 - l) / Λ) over right solutions)
        wrong:  -exp(s_i / τ) / (Σ of exp(s / τ) over wrong solutions)

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
    `core_algos.compute_policy_loss_drpo`, whose gradient has these weights.
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
