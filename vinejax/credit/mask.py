"""Mask rules: which tokens of a response are trained on.

A rule takes (Episode, CreditConfig) and returns a bool per response token. Tokens that it leaves
out have no loss and no KL, and do not count in means over tokens or in whitening. `top_entropy`
differs: it compares all tokens of an iteration, so it takes their entropies.
"""

import numpy as np

from vinejax.core.settings import CreditConfig
from vinejax.core.types import Episode


def all_tokens(episode: Episode, credit: CreditConfig) -> np.ndarray:
    """bool[T] True for every token."""
    return np.ones(len(episode.response), bool)


def low_probability(episode: Episode, credit: CreditConfig) -> np.ndarray:
    """bool[T] the tokens whose probability was below `credit.mask_above`.

        M_t = [p_t < mask_above]    p_t the sampler's probability, at the sampling temperature

    Source: SPO-chain, https://arxiv.org/abs/2505.23564.
    """
    return np.exp(np.array(episode.logprobs, np.float32)) < credit.mask_above


def top_entropy(entropy: np.ndarray, mask: np.ndarray, credit: CreditConfig) -> np.ndarray:
    """bool[B, T] the share `credit.mask_share` of the mask's tokens with the highest entropy.

        M_t = [H_t ≥ the (1 - mask_share)-quantile of H]    H_t the old policy's entropy at token t

    Source: https://arxiv.org/abs/2506.01939; TRL 1.16.0, `GRPOTrainer.get_high_entropy_mask`. Both
    differ from ours: they divide the loss by the number of all tokens, which makes the loss
    `mask_share` times as large, and they take the quantile per batch under the current policy.
    """
    if not mask.any():
        return mask
    return mask & (entropy >= np.quantile(entropy[mask], 1 - credit.mask_share))
