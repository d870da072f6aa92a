"""POAD: PPO that discounts per action, not per token; an action is a step, such as a turn.

    A: `ppo`'s, with γ at an action's last token and 1 at its other tokens

PPO's γ discounts per token, so that the length of actions changes their credit. With γ = 1 the two
methods are the same.

Source: https://arxiv.org/abs/2405.15821; morning9393/ADRL at 5ec1aa5, `batch_process_tppo`.

Departs: the critic is that of `ppo`.
"""

import numpy as np

from vinejax.contrib.methods.equations.turn_returns import action_estimates
from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, before_steps, token_rewards
from vinejax.methods.base import OF_TOKENS, Method
from vinejax.methods.ppo import Critic, CriticConfig


def action_credit(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring, and the returns that the critic learns."""
    assert rollout.values is not None, "POAD's credit needs the critic's values"
    rewards, values = token_rewards(rollout, cfg), np.asarray(rollout.values)
    advantages, returns = action_estimates(
        rewards,
        values,
        actions=rollout.steps.step_ids,
        gamma=cfg.ppo.gamma,
        lam=CriticConfig.of(cfg).lam,
    )
    return Credit(advantages, returns=returns, values=before_steps(values, rollout.steps))


METHOD = Method(
    action_credit,
    state=Critic(),
    settings=CriticConfig,
    reads=OF_TOKENS,
    defaults={"ppo.whiten": "iteration"},
)
