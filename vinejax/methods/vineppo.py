"""VinePPO: step advantages from Monte Carlo values of every intermediate step.

    A_c = r_c + γ·V(s_{c+1}) - V(s_c)    for each token of step c, V(s_C) = 0
    V(s) = mean return of `values.k` fresh continuations of the policy from s

Source: Kazemnejad et al., ICML 2025, https://arxiv.org/abs/2410.01679; docs/methods.md says how
defaults differ from the authors' code.
"""

import jax.numpy as jnp

from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit
from vinejax.methods.base import Method
from vinejax.methods.stages import monte_carlo
from vinejax.rl.advantages import step_advantages, step_progress, token_advantages
from vinejax.rl.by_role import role_advantages


def vine(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages above.

    With `credit.lam` or `credit.filter` they are those of `rl.by_role.role_advantages`; with
    `credit.progress` a prover's progress is added: `rl.advantages.step_progress`.
    """
    steps, lam, filter = rollout.steps, cfg.credit.lam, cfg.credit.filter
    of_values = steps.values, steps.rewards, steps.num_steps
    by_step = step_advantages(*of_values, cfg.ppo.gamma)
    if lam or filter:
        averaged = role_advantages(*of_values, lam, filter, cfg.ppo.gamma, steps.counts > 0)
        by_step = jnp.where(steps.counts >= 0, averaged, 0.0)
    if cfg.credit.progress:
        prover = cfg.credit.prover
        progress = step_progress(steps.values, steps.rewards, steps.num_steps, prover)
        by_step += cfg.credit.progress * progress
    return Credit(token_advantages(by_step, steps.step_ids), by_step=by_step)


METHOD = Method(vine, values=monte_carlo, whiten="iteration", reads=("values", "credit"))
