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
from vinejax.core.types import Array, Batch, Rollout
from vinejax.learner.policy import PolicyObjective
from vinejax.learner.update import Loss
from vinejax.options.option import Option
from vinejax.rl.losses import kl
from vinejax.session.iteration import Iteration
from vinejax.session.session import Session

MOST = 0.2  # of the relative error


def adapted(coef: float, found: float, target: float, share: float) -> float:
    """The next coefficient; `found` is the KL per response, `share` is n / horizon."""
    error = min(max(found / target - 1.0, -MOST), MOST)
    return coef * (1.0 + error * share)


class AdaptiveKL(Option):
    """Keeps the coefficient, float64 []."""

    def keeps(self, cfg: Config) -> bool:
        return cfg.kl.target is not None

    def fresh(self, session: Session) -> np.ndarray:
        return np.array(session.cfg.kl.coef, np.float64)

    def scored(self, it: Iteration, kept: np.ndarray, rollout: Rollout) -> tuple[Array, Rollout]:
        own, coef, count = it.cfg.kl, float(kept), len(rollout.episodes)
        batch = rollout.batch
        estimate = np.asarray(kl(batch.old_logprobs, batch.ref_logprobs, kind="k1"))
        found = float(np.where(batch.mask, estimate, 0).sum(dtype=np.float64)) / count
        it.metrics |= {"kl/coef": coef, "kl/response": found}
        assert own.target is not None
        after = adapted(coef, found, own.target, count / own.horizon)
        return np.array(after, np.float64), rollout._replace(kl_coef=coef)


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
