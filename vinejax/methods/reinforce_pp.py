"""REINFORCE++: the discounted reward still to come, less the KL to the reference model.

    A_t = Σ_{i≥t} γ^(i-t)·(r_i - `kl.coef`·log(π_old/π_ref)_i)

The KL is in the reward alone.

Source: https://arxiv.org/abs/2501.03262.
"""

import jax.numpy as jnp

from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, token_rewards
from vinejax.methods.base import Method
from vinejax.rl.advantages import gae
from vinejax.rl.losses import kl


def return_to_go(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages above, before whitening."""
    batch = rollout.batch
    rewards = jnp.asarray(token_rewards(rollout.steps))
    rewards -= cfg.kl.coef * kl(batch.old_logprobs, batch.ref_logprobs, kind="k1")
    advantages, _ = gae(rewards, jnp.zeros_like(rewards), batch.mask, cfg.ppo.gamma, 1.0)
    return Credit(advantages)


METHOD = Method(return_to_go, whiten="iteration", kl_in_reward=True)
