"""REINFORCE++: the discounted reward still to come, less the KL to the reference model.

    A_t = Σ_{i≥t} γ^(i-t)·(r_i - `kl.coef`·log(π_old/π_ref)_i)

The KL is in the reward alone.

Source: https://arxiv.org/abs/2501.03262.
"""

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, token_estimates
from vinejax.methods.base import OF_TOKENS, Method


def return_to_go(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages above, before whitening."""
    no_values = np.zeros(rollout.batch.mask.shape, np.float32)
    advantages, _ = token_estimates(rollout, cfg, no_values, 1.0)
    return Credit(advantages)


METHOD = Method(return_to_go, whiten="iteration", kl_place="reward", reads=OF_TOKENS)
