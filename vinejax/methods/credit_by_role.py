"""VinePPO's credit, generalised: averages over steps and a learned value replace single values.

    A_c = Q_c - b_c    Q_c: the result of step c, an average by `credit.lambda_`
                       b_c: its baseline, an average by `credit.baseline_lambda`, mixed with a
                       learned value of weight μ

`rl.by_role.role_advantages` has the equations.
"""

import jax.numpy as jnp

from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, before_steps
from vinejax.methods.vineppo import vine
from vinejax.rl.advantages import token_advantages
from vinejax.rl.by_role import role_advantages


def has_roles(cfg: Config) -> bool:
    """Whether the configuration asks for averages over steps, or for a learned value."""
    return bool(cfg.credit.lambda_ or cfg.credit.baseline_lambda or cfg.values.prior)


def step_credit(rollout: Rollout, cfg: Config) -> Credit:
    """The credit of `credit_by_role` if `has_roles(cfg)`, else VinePPO's (`vineppo.vine`)."""
    return credit_by_role(rollout, cfg) if has_roles(cfg) else vine(rollout, cfg)


def credit_by_role(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring; 0 for a step that does not begin at a state."""
    steps = rollout.steps
    learned = None if rollout.values is None else before_steps(rollout.values, steps)
    by_step = role_advantages(
        steps.values,
        steps.rewards,
        steps.num_steps,
        cfg.credit.lambda_,
        cfg.credit.baseline_lambda,
        cfg.ppo.gamma,
        steps.counts > 0,
        learned,
        rollout.weight,
    )
    by_step = jnp.where(steps.counts >= 0, by_step, 0.0)
    return Credit(token_advantages(by_step, steps.step_ids), by_step=by_step)
