"""Mask rules: which tokens of a response are trained on.

A rule takes (Episode, CreditConfig) and gives a bool for each response token. What it leaves out
has no loss and no KL, and does not count in means over tokens or in whitening.
"""

import numpy as np

from vinejax.core.settings import CreditConfig
from vinejax.core.types import Episode


def all_tokens(episode: Episode, credit: CreditConfig) -> np.ndarray:
    """bool[T] True."""
    return np.ones(len(episode.response), bool)


def low_probability(episode: Episode, credit: CreditConfig) -> np.ndarray:
    """bool[T] tokens that the policy found less likely than `credit.mask_above`.

        M_t = [p_t < mask_above]    p_t the sampler's own, at the sampling temperature

    Source: SPO-chain, https://arxiv.org/abs/2505.23564.
    """
    return np.exp(np.array(episode.logprobs, np.float32)) < credit.mask_above
