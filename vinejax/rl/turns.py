"""Credit of turns from the rewards of an environment."""

from collections.abc import Hashable, Sequence

import numpy as np

Numbers = Sequence[float] | np.ndarray


def returns_to_go(rewards: Numbers, gamma: float) -> np.ndarray:
    """Discounted returns of one episode.

        G_t = r_t + γ·G_{t+1}

    Args:
      rewards: [n] of its turns.
      gamma: γ.

    Returns:
      float64 [n].
    """
    returns = np.zeros(len(rewards))
    after = 0.0
    for t in reversed(range(len(rewards))):
        returns[t] = after = rewards[t] + gamma * after
    return returns


def against_equals(
    values: Numbers, groups: Sequence[Hashable], has_std: bool = True, eps: float = 1e-6
) -> np.ndarray:
    """Each value compared with those of its group.

        (x - mean x) / (std x + ε)    std of the sample, or no divisor

    Args:
      values: [n] of any real dtype.
      groups: [n], equal for the members of a group, in any order.
      has_std: whether the differences are divided.
      eps: ε.

    Returns:
      float64 [n], exactly 0 in groups whose values are all equal and in groups of one.

    Source: GiGPO, https://arxiv.org/abs/2505.10978, equations 3 and 6.
    """
    found = np.zeros(len(values))
    members: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    for places in members.values():
        x = np.asarray(values, np.float64)[places]
        if np.ptp(x) > 0:
            found[places] = (x - x.mean()) / (x.std(ddof=1) + eps if has_std else 1.0)
    return found
