"""Credit of turns from the rewards of an environment."""

from collections.abc import Hashable, Sequence

import numpy as np

Numbers = Sequence[float] | np.ndarray


def group_scores(values: Numbers, groups: Sequence[Hashable], has_std: bool = True) -> np.ndarray:
    """The standardised difference of each value from the mean of its group.

        (x - mean x) / (std x + 1e-6)    std of the sample; no division if not `has_std`

    Args:
      values: [n] of any real dtype.
      groups: [n], the group of each value; the members of a group need not be adjacent.
      has_std: whether differences are divided by the std.

    Returns:
      float64 [n], exactly 0 in groups with one member and where all values of a group are equal.

    Source: GiGPO, https://arxiv.org/abs/2505.10978, equations 3 and 6.
    """
    scores = np.zeros(len(values))
    members: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    for places in members.values():
        x = np.asarray(values, np.float64)[places]
        if np.ptp(x) > 0:
            scores[places] = (x - x.mean()) / (x.std(ddof=1) + 1e-6 if has_std else 1.0)
    return scores


def action_estimates(
    rewards: np.ndarray, values: np.ndarray, actions: np.ndarray, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """Generalised advantage estimates of tokens, discounted per action.

        δ_t = r_t + γ_t·V_{t+1} - V_t    A_t = δ_t + γ_t·λ·A_{t+1}    return_t = A_t + V_t

    γ_t is γ at the last token of an action, and 1 at its other tokens.

    Args:
      rewards: [B, T], reward for token t.
      values: [B, T], value of the state before token t.
      actions: int [B, T], the action of each token; tokens with -1 have no action and are skipped.
      gamma: γ.
      lam: λ.

    Returns:
      (advantages, returns), float32 [B, T], 0 at tokens without an action.

    Source: POAD, https://arxiv.org/abs/2405.15821; its code, `batch_process_tppo`.
    """
    advantages, returns = np.zeros(rewards.shape, np.float32), np.zeros(rewards.shape, np.float32)
    value, advantage = np.zeros(len(rewards)), np.zeros(len(rewards))
    following = np.full(len(rewards), -1)
    for t in reversed(range(rewards.shape[1])):
        is_own = actions[:, t] >= 0
        discount = np.where(following == actions[:, t], 1.0, gamma)
        delta = rewards[:, t] + discount * value - values[:, t]
        advantage = np.where(is_own, delta + discount * lam * advantage, advantage)
        value = np.where(is_own, values[:, t], value)
        following = np.where(is_own, actions[:, t], following)
        advantages[:, t] = np.where(is_own, advantage, 0.0)
        returns[:, t] = np.where(is_own, advantage + value, 0.0)
    return advantages, returns


def shared_rewards(rewards: Numbers, gamma: float) -> np.ndarray:
    """Credit of turns, in which each turn's reward is divided among this turn and earlier turns.

        c_t = Σ_{i≥t} r_i·γ^(i-t) / Σ_{j≤i} γ^(i-j)

    Args:
      rewards: [n], one per turn of the episode.
      gamma: γ; with 0 a turn keeps its reward, with 1 all turns up to this turn get equal parts.

    Returns:
      float64 [n], with the same sum as the rewards.

    Source: PrimeIntellect-ai/prime-rl, pull request 3282.
    """
    shared = np.zeros(len(rewards))
    for i, reward in enumerate(rewards):
        weights = np.power(float(gamma), np.arange(i, -1, -1))
        shared[: i + 1] += reward * weights / weights.sum()
    return shared
