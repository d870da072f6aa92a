"""Online policy mirror descent: centred rewards, with a penalty on the squared log-ratio.

    A = r - mean r    loss of a solution: -A·logπ + τ/2·(logπ(y) - logπ_old(y))²

Source: https://arxiv.org/abs/2501.12599; `equations.sequence_losses.opmd`.

Departs: the mean is over tokens, not solutions, so losses differ by a factor per minibatch.
"""

import jax

from vinejax.contrib.methods.equations.sequence_losses import opmd
from vinejax.contrib.methods.settings import OPMDConfig
from vinejax.core.types import Batch
from vinejax.learner.policy import PolicyLoss, PolicyObjective
from vinejax.methods.base import OF_GROUPS, OF_RATIO, OF_RETURNS, Method
from vinejax.methods.baselines import less_mean


def loss(logprobs: jax.Array, batch: Batch, objective: PolicyObjective) -> PolicyLoss:
    """The loss of online policy mirror descent, as the equation defines it."""
    settings: OPMDConfig = objective.method_settings
    return PolicyLoss(
        opmd(
            logprobs,
            batch.old_logprobs,
            batch.advantages,
            mask=batch.mask,
            tau=settings.tau,
            segment_ids=batch.segment_ids,
        )
    )


METHOD = Method(
    less_mean,
    loss=loss,
    settings=OPMDConfig,
    reads=OF_GROUPS,
    ignores=OF_RATIO + OF_RETURNS,
    defaults={"reward.scale": "none"},
    flags={"groups"},
)
