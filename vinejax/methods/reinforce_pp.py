"""REINFORCE++: the discounted reward still to come, less the KL to the reference model.

    A_t = Σ_{i≥t} γ^(i-t)·(r_i - `kl.coef`·log(π_old/π_ref)_i)

The KL is in the reward alone.

Source: https://arxiv.org/abs/2501.03262.
"""

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, token_rewards
from vinejax.methods.base import OF_TOKENS, Method
from vinejax.rl.advantages import gae


def return_to_go(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages above, before whitening."""
    batch = rollout.batch
    rewards = token_rewards(rollout, cfg)
    advantages, _ = gae(rewards, np.zeros_like(rewards), batch.mask, cfg.ppo.gamma, 1.0)
    return Credit(advantages)


METHOD = Method(return_to_go, whiten="iteration", kl_place="reward", reads=OF_TOKENS)
