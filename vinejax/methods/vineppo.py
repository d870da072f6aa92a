"""VinePPO: step advantages from Monte Carlo values of every intermediate step.

    A_c = r_c + γ·V(s_{c+1}) - V(s_c)    V(s): mean return of `values.k` continuations

V(s_C) = 0.

Source: Kazemnejad et al., ICML 2025, https://arxiv.org/abs/2410.01679.

Departs: [this table](engine.md#departures-from-vineppos-code).
"""

import jax.numpy as jnp

from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, before_steps
from vinejax.methods.base import Method
from vinejax.methods.prior import Prior
from vinejax.methods.stages import monte_carlo
from vinejax.rl.advantages import step_advantages, token_advantages
from vinejax.rl.by_role import role_advantages


def vine(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages above.

    With `credit.lam`, `credit.filter` or a learned value they are those of
    `rl.by_role.role_advantages`.
    """
    steps, gamma = rollout.steps, cfg.ppo.gamma
    of_values = steps.values, steps.rewards, steps.num_steps
    prior = None if rollout.values is None else before_steps(rollout.values, steps)
    roles = cfg.credit.lam, cfg.credit.filter
    if any(roles) or prior is not None:
        mixed = steps.counts > 0, prior, rollout.weight
        by_step = role_advantages(*of_values, *roles, gamma, *mixed)
        by_step = jnp.where(steps.counts >= 0, by_step, 0.0)
    else:
        by_step = step_advantages(*of_values, gamma)
    return Credit(token_advantages(by_step, steps.step_ids), by_step=by_step)


METHOD = Method(
    vine, values=monte_carlo, state=Prior(), whiten="iteration", reads=("values", "credit")
)
