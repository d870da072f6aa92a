"""VinePPO: step advantages from Monte Carlo values of every intermediate step.

    A_c = r_c + γ·V(s_{c+1}) - V(s_c)    for each token of step c, V(s_C) = 0
    V(s) = mean return of `values.k` fresh continuations of the policy from s

Source: Kazemnejad et al., ICML 2025, https://arxiv.org/abs/2410.01679; docs/methods.md says how
defaults differ from the authors' code.
"""

from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit
from vinejax.methods.base import Method
from vinejax.methods.stages import monte_carlo
from vinejax.rl.advantages import step_advantages, step_progress, token_advantages


def vine(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages above; with `credit.progress` a prover's progress is added, which is ours.

    See `rl.advantages.step_progress`.
    """
    steps = rollout.steps
    by_step = step_advantages(steps.values, steps.rewards, steps.num_steps, cfg.ppo.gamma)
    if cfg.credit.progress:
        prover = cfg.credit.prover
        progress = step_progress(steps.values, steps.rewards, steps.num_steps, prover)
        by_step += cfg.credit.progress * progress
    return Credit(token_advantages(by_step, steps.step_ids), by_step=by_step)


METHOD = Method(vine, values=monte_carlo, whiten="iteration", reads=("values", "credit"))
