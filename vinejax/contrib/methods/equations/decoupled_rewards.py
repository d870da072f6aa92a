"""Advantages from several rewards, each of which is normalised by itself: GDPO."""

import numpy as np

EPS = 1e-4  # added to standard deviations, as in TRL and in the authors' code for TRL


def decoupled_advantages(
    rewards: np.ndarray, group_ids: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Advantages of solutions with N rewards, whose scales do not matter.

        z_in = (r_in - mean r_n) / (std r_n + ε)    mean and std over the group of solution i
        a_i = Σ_n w_n·z_in
        A_i = (a_i - mean a) / (std a + ε)    mean and std over the batch

    Standard deviations are those of the sample, and ε is 1e-4.

    Args:
      rewards: [B, N], NaN where reward n does not judge solution i. Such an entry adds nothing to
        a_i, and does not count in the mean and the std of the group.
      group_ids: int [B], equal for the solutions of a group.
      weights: [N].

    Returns:
      float64 [B]. A reward that is equal for a whole group adds exactly 0 to the group's a. A
      solution that no reward judges has A = 0, and does not count in the batch.

    Source: GDPO, https://arxiv.org/abs/2601.05242; NVlabs/GDPO at 2652ab4, README.md; TRL at
    f2cd577, `grpo_trainer.py`: `multi_objective_aggregation="normalize_then_sum"`.
    """
    rewards = np.asarray(rewards, np.float64)
    normalised = np.zeros_like(rewards)
    for group in np.unique(group_ids):
        rows = np.flatnonzero(group_ids == group)
        for n, of_reward in enumerate(rewards[rows].T):
            judged = np.flatnonzero(~np.isnan(of_reward))
            normalised[rows[judged], n] = _standardised(of_reward[judged])
    summed = normalised @ np.asarray(weights, np.float64)
    # The mean of `summed` is 0, because that of every group's z is.
    count = np.count_nonzero(~np.isnan(rewards).all(axis=1))
    std = np.sqrt(np.sum(summed**2) / max(count - 1, 1))
    return summed / (std + EPS)


def _standardised(x: np.ndarray) -> np.ndarray:
    """(x - mean x) / (std x + ε); exactly 0 if all entries of x are equal, or if x has one."""
    if x.size < 2 or np.ptp(x) == 0:
        return np.zeros_like(x)
    return (x - x.mean()) / (x.std(ddof=1) + EPS)
