"""`kl.target`: the coefficient of the KL follows a target.

    e = clip(KL / target - 1, -0.2, 0.2)    coef ← coef·(1 + e·n / horizon)

KL is the mean over the iteration's n responses of Σ_t log(π_old / π_ref)_t, in nats. Source:
Ziegler et al., https://arxiv.org/abs/1909.08593, section 2.2; openai/lm-human-preferences
`train_policy.py` (AdaptiveKLController). verl's controller is fed the mean over tokens instead.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Array, Batch, Rollout, RunState
from vinejax.learner.policy import PolicyObjective
from vinejax.learner.update import Loss
from vinejax.rl.losses import kl
from vinejax.session.iteration import Iteration

MOST = 0.2  # of the relative error
KEPT = "adaptive_kl"  # name of the coefficient in `RunState.options`


def adapted(coef: float, found: float, target: float, share: float) -> float:
    """The next coefficient; `found` is the KL per response, `share` is n / horizon."""
    error = min(max(found / target - 1.0, -MOST), MOST)
    return coef * (1.0 + error * share)


def fresh(cfg: Config) -> dict[str, np.ndarray] | None:
    """The coefficient before the first iteration, float64 []; None for a run without a target."""
    return None if cfg.kl.target is None else {KEPT: np.array(cfg.kl.coef, np.float64)}


def followed(it: Iteration, state: RunState, rollout: Rollout) -> tuple[RunState, Rollout]:
    """The state with the next iteration's coefficient, and the scored rollout with this one's."""
    own, batch = it.cfg.kl, rollout.batch
    if own.target is None:
        return state, rollout
    coef, count = float(state.options[KEPT]), len(rollout.episodes)
    estimate = np.asarray(kl(batch.old_logprobs, batch.ref_logprobs, kind="k1"))
    found = float(np.where(batch.mask, estimate, 0).sum(dtype=np.float64)) / count
    it.metrics |= {"kl/coef": coef, "kl/response": found}
    after = adapted(coef, found, own.target, count / own.horizon)
    kept = {KEPT: np.array(after, np.float64)}
    return state._replace(options=kept), rollout._replace(kl_coef=coef)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptiveObjective(PolicyObjective):
    """A policy loss whose KL has the coefficient that comes with the rows, f32[B, T].

    A number of the objective's own would be a part of the compiled program.
    """

    def loss_over(self, rows: tuple[Batch, Array]) -> tuple[tuple[Batch, Array], Loss]:
        batch, coef = rows
        plain = dataclasses.replace(self, kl_coef=jnp.max(coef))
        return PolicyObjective.loss_over(plain, batch)


def with_coefficient(
    objective: PolicyObjective, batch: Batch, coef: float | None
) -> tuple[PolicyObjective, Batch | tuple[Batch, np.ndarray]]:
    """Objective and rows of the updates, for a coefficient of this iteration; None: a fixed one.

    An objective without KL, which is in the reward then, stays as it is.
    """
    if coef is None or not objective.kl_coef:
        return objective, batch
    fields = {x.name: getattr(objective, x.name) for x in dataclasses.fields(objective)}
    return AdaptiveObjective(**fields), (batch, np.full(batch.mask.shape, coef, np.float32))
