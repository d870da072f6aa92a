"""Helpers of methods that weigh the solutions of a problem by more than their rewards."""

import numpy as np

from vinejax.core.types import Array, Episode, Rollout
from vinejax.credit.assign import group_numbers


def members_of(episodes: list[Episode]) -> list[np.ndarray]:
    """The numbers of the episodes of each group, i64[size] per group."""
    groups = group_numbers(episodes)
    return [np.flatnonzero(groups == group) for group in np.unique(groups)]


def token_means(rollout: Rollout, x: Array) -> np.ndarray:
    """The mean of x, [B, T], over each solution's trained tokens: f64[episodes], 0 without any."""
    mask = np.asarray(rollout.batch.mask)[: len(rollout.episodes)]
    totals = np.where(mask, np.asarray(x)[: len(mask)], 0.0).sum(axis=1, dtype=np.float64)
    return totals / np.maximum(mask.sum(axis=1), 1)
