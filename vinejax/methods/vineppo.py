"""VinePPO: step advantages from Monte Carlo values of every intermediate step.

    A_c = r_c + γ·V(s_{c+1}) - V(s_c)    V(s): mean return of `values.k` continuations

V(s_C) = 0.

Source: Kazemnejad et al., ICML 2025, https://arxiv.org/abs/2410.01679.

Departs: [this table](engine.md#departures-from-vineppos-code).
"""

from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit
from vinejax.methods.base import Method
from vinejax.methods.learned_value import LearnedValue
from vinejax.methods.stages import monte_carlo
from vinejax.rl.advantages import step_advantages, token_advantages


def vine(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring (`credit_by_role.py` has generalised ones)."""
    steps = rollout.steps
    by_step = step_advantages(steps.values, steps.rewards, steps.num_steps, cfg.ppo.gamma)
    return Credit(token_advantages(by_step, steps.step_ids), by_step=by_step)


METHOD = Method(
    vine,
    values=monte_carlo,
    state=LearnedValue(),
    defaults={"ppo.whiten": "iteration"},
    reads=("values", "credit"),
)
