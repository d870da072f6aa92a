"""Online policy mirror descent: rewards less the group's mean, and a squared log-ratio.

    A = r - mean r    loss of a solution: -A·logπ + τ/2·(logπ(y) - logπ_old(y))²

Source: https://arxiv.org/abs/2501.12599; `rl.losses.opmd`.

Departs: a token mean, not one over solutions: a factor per minibatch.
"""

import jax

from vinejax.contrib.methods.settings import OPMDConfig
from vinejax.core.types import Batch
from vinejax.learner.policy import PolicyLoss, PolicyObjective
from vinejax.methods.base import OF_GROUPS, OF_RATIO, Method
from vinejax.methods.baselines import less_mean
from vinejax.rl import losses


def loss(logprobs: jax.Array, batch: Batch, objective: PolicyObjective) -> PolicyLoss:
    """The loss of online policy mirror descent: see `rl.losses.opmd`."""
    own: OPMDConfig = objective.method_settings
    arguments = (logprobs, batch.old_logprobs, batch.advantages, batch.mask, own.tau)
    return PolicyLoss(losses.opmd(*arguments, segment_ids=batch.segment_ids))


METHOD = Method(
    less_mean,
    loss=loss,
    settings=OPMDConfig,
    reads=OF_GROUPS,
    ignores=OF_RATIO,
    defaults={"reward.scale": "none"},
    flags={"groups"},
    about=__doc__ or "",
)
