"""Direct Advantage Policy Optimization: each step's log-ratio is drawn to its advantage.

    loss of a step: ½·(Σ_t log(π/π_old)_t - A_c / β)²    A_c: VinePPO's

VinePPO without ratio and clip. A step with A_c = 0 is held where it was.

Source: https://arxiv.org/abs/2412.18279.

Departs: V of π by Monte Carlo, there of π_ref by a critic; a mean over tokens, there over steps.
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

MOST_STEPS = 2**16  # of a solution: segment and step together are one number


def step_numbered_credit(rollout: Rollout, cfg: Config) -> Credit:
    """VinePPO's credit, and the number of each token's step for the loss.

    Observations have the step before them: a step on both sides of one is a single segment.
    """
    steps = np.maximum.accumulate(rollout.steps.step_ids, axis=1)
    return step_credit(rollout, cfg)._replace(loss_extra=steps)


def loss(logprobs: jax.Array, batch: Batch, objective: PolicyObjective) -> PolicyLoss:
    """The loss of each step: see `rl.sequence_losses.advantage_regression`."""
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
