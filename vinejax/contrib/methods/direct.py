"""Direct Advantage Policy Optimization: each step's log-ratio is regressed on its advantage.

    loss of a step: ½·(Σ_t log(π/π_old)_t - A_c / β)²    A_c: VinePPO's

This is VinePPO with another loss, which has no ratio and no clip. A step with A_c = 0 is held at
its old probability.

Source: https://arxiv.org/abs/2412.18279.

Departs: V is the value of π by Monte Carlo; in the paper it is that of π_ref by a critic. The loss
is a mean over tokens; in the paper it is a mean over steps.
"""

import jax
import numpy as np

from vinejax.contrib.methods.equations.sequence_losses import advantage_regression
from vinejax.contrib.methods.settings import DirectConfig
from vinejax.core.settings import Config
from vinejax.core.types import Batch, Rollout
from vinejax.credit.assign import Credit
from vinejax.learner.policy import PolicyLoss, PolicyObjective
from vinejax.methods.base import OF_RATIO, Method
from vinejax.methods.credit_by_role import step_credit
from vinejax.methods.learned_value import LearnedValue
from vinejax.methods.stages import monte_carlo

MOST_STEPS = 2**16  # limit of a solution's steps, which lets one integer hold segment and step


def step_numbered_credit(rollout: Rollout, cfg: Config) -> Credit:
    """VinePPO's credit. For the loss, `loss_extra` has the number of each token's step.

    Tokens of an observation get the number of the step before the observation. A step that goes on
    after the observation therefore stays one segment.
    """
    steps = np.maximum.accumulate(rollout.steps.step_ids, axis=1)
    return step_credit(rollout, cfg)._replace(loss_extra=steps)


def loss(logprobs: jax.Array, batch: Batch, objective: PolicyObjective) -> PolicyLoss:
    """The loss of each step, as `equations.sequence_losses.advantage_regression` defines it."""
    settings: DirectConfig = objective.method_settings
    steps = batch.segment_ids * MOST_STEPS + batch.loss_extra + 1
    return PolicyLoss(
        advantage_regression(
            logprobs,
            batch.old_logprobs,
            batch.advantages,
            mask=batch.mask,
            beta=settings.beta,
            segment_ids=steps,
        )
    )


METHOD = Method(
    step_numbered_credit,
    values=monte_carlo,
    state=LearnedValue(),
    loss=loss,
    settings=DirectConfig,
    reads=("values", "credit"),
    ignores=OF_RATIO,
)
