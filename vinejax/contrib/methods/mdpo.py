"""MDPO: mirror descent, with a penalty on leaving the sampling policy that grows over the run.

    A = (r - mean r) / (std r + 1e-8)    loss: -A·ρ + (ρ·log ρ - ρ + 1) / t_k    ρ = π/π_old
    t_k = `mdpo.step`·(1 - k / `iterations`) in iteration k = 0, 1, ...

Nothing is clipped, and several epochs (`ppo.epochs`) approach the minimum, which is at
log ρ = t_k·A. The penalty's mean over samples of π_old is KL(π ‖ π_old).

Source: https://arxiv.org/abs/2005.09814, on-policy MDPO;
manantomar/Mirror-Descent-Policy-Optimization at c9bd3ba, `mdpo_on/mdpo.py`: `surrgain`, `lr_now`.

Departs: A is GRPO's; in the code it is a critic's, standardised over the batch. The KL of a token
is estimated from the sampled token; in the code it is computed from the two distributions. The
code's t_k begins at 1 + 1 / iterations.
"""

import jax
import jax.numpy as jnp
import numpy as np

from vinejax.contrib.methods.settings import MDPOConfig
from vinejax.core.settings import Config
from vinejax.core.types import Batch, Rollout, RunState
from vinejax.credit.assign import Credit
from vinejax.learner.policy import PolicyLoss, PolicyObjective
from vinejax.methods import base
from vinejax.methods.base import OF_GROUPS, OF_RETURNS, Method
from vinejax.methods.baselines import standardised
from vinejax.rl.losses import probability_ratio
from vinejax.session.iteration import Iteration


def first_credit(rollout: Rollout, cfg: Config) -> Credit:
    """GRPO's credit. For the loss, `loss_extra` has 1 / t_0, the penalty of the first iteration."""
    penalty = np.full(rollout.batch.mask.shape, 1 / MDPOConfig.of(cfg).step, np.float32)
    return standardised(rollout, cfg)._replace(loss_extra=penalty)


def update(iteration: Iteration, state: RunState, rollout: Rollout, credit: Credit) -> RunState:
    """The policy's updates with the iteration's own penalty 1 / t_k, which is at least 1 / t_0."""
    assert credit.loss_extra is not None
    share_left = np.float32(1 - iteration.number / iteration.cfg.iterations)
    annealed = credit._replace(loss_extra=credit.loss_extra / share_left)
    return base.update(iteration, state, rollout, annealed)


def loss(logprobs: jax.Array, batch: Batch, objective: PolicyObjective) -> PolicyLoss:
    """The loss in the module's docstring, whose gradient is ρ·(log ρ / t_k - A)·∇logπ."""
    ratio, moved = probability_ratio(logprobs, batch.old_logprobs), logprobs - batch.old_logprobs
    penalty = batch.loss_extra * (ratio * (moved - 1) + 1)
    return PolicyLoss(penalty - batch.advantages * ratio, jnp.zeros_like(batch.mask))


METHOD = Method(
    first_credit,
    update=update,
    loss=loss,
    settings=MDPOConfig,
    reads=OF_GROUPS,
    ignores=("ppo.clip", "ppo.clip_high", *OF_RETURNS),
    defaults={"reward.scale": "group"},
    flags={"groups"},
)
