"""Functions for methods whose solution weights depend on more than the rewards."""

import numpy as np

from vinejax.core.types import Array, Episode, Rollout
from vinejax.credit.assign import group_numbers


def members_of(episodes: list[Episode]) -> list[np.ndarray]:
    """For each group, the indices of its members in `episodes`, i64[group size]."""
    groups = group_numbers(episodes)
    return [np.flatnonzero(groups == group) for group in np.unique(groups)]


def token_means(rollout: Rollout, x: Array) -> np.ndarray:
    """The mean of `x`, [B, T], over the tokens of each solution that the policy drew; 0 if none."""
    mask = np.asarray(rollout.batch.mask)[: len(rollout.episodes)]
    totals = np.where(mask, np.asarray(x)[: len(mask)], 0.0).sum(axis=1, dtype=np.float64)
    return totals / np.maximum(mask.sum(axis=1), 1)
