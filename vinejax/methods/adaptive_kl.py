"""`kl.target`: the coefficient of the KL divergence follows a target.

    e = clip(KL / target - 1, -0.2, 0.2)    coef ← coef·(1 + e·min(n / horizon, 1))

KL is the mean over the iteration's n responses of Σ_t log(π_old / π_ref)_t, in nats. Source:
Ziegler et al., https://arxiv.org/abs/1909.08593, section 2.2; openai/lm-human-preferences
`train_policy.py` (AdaptiveKLController). verl's controller uses the mean over tokens instead.

Departs: n / horizon is at most 1. Without this bound the coefficient would turn negative in an
iteration of more than 5·horizon responses, and its loss would drive the policy away from the
reference model.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Array, Batch, Episode, Rollout, RunState
from vinejax.credit.assign import Credit
from vinejax.learner.policy import PolicyObjective
from vinejax.learner.update import Loss
from vinejax.methods.base import Method
from vinejax.model.decoder import Decoder
from vinejax.rl.losses import kl
from vinejax.session.iteration import Iteration

MOST = 0.2  # largest absolute value of the error e
KEPT = "adaptive_kl"  # name of the coefficient in `RunState.options`


def adapted(coef: float, kl_per_response: float, target: float, share: float) -> float:
    """The coefficient of the next iteration, if that of this iteration is `coef`.

    `kl_per_response` is that of this iteration, in nats, and `share` is n / `kl.horizon` for n
    responses. The coefficient changes by a fifth at most.
    """
    error = min(max(kl_per_response / target - 1.0, -MOST), MOST)
    return coef * (1.0 + error * min(share, 1.0))


def has_target(cfg: Config) -> bool:
    """Whether the coefficient follows a target. A coefficient of 0 always stays 0."""
    return cfg.kl.target is not None and cfg.kl.coef > 0


def composed(method: Method, cfg: Config) -> Method:
    """The method, whose KL coefficient follows `kl.target` if the run has a target."""
    if not has_target(cfg):
        return method
    stages = {
        "score": functools.partial(_with_coefficient, method.score),
        "update": functools.partial(_following, method.update),
    }
    fields = {x.name: getattr(method, x.name) for x in dataclasses.fields(method)}
    return AdaptiveMethod(**fields | stages)


def fresh(cfg: Config) -> dict[str, np.ndarray] | None:
    """The coefficient before the first iteration, float64 []; None for a run without a target."""
    return {KEPT: np.array(cfg.kl.coef, np.float64)} if has_target(cfg) else None


def _with_coefficient(
    score: Callable[..., Rollout], iteration: Iteration, state: RunState, episodes: list[Episode]
) -> Rollout:
    """The scored rollout with this iteration's coefficient."""
    return score(iteration, state, episodes)._replace(kl_coef=float(state.options[KEPT]))


def _following(
    update: Callable[..., RunState],
    iteration: Iteration,
    state: RunState,
    rollout: Rollout,
    credit: Credit,
) -> RunState:
    """The state after the method's `update` with this iteration's coefficient.

    The returned state holds the next iteration's coefficient.
    """
    cfg, batch, count = iteration.cfg, rollout.batch, len(rollout.episodes)
    assert cfg.kl.target is not None and rollout.kl_coef is not None
    estimate = np.asarray(kl(batch.old_logprobs, batch.ref_logprobs, kind="k1"))
    kl_per_response = float(np.where(batch.mask, estimate, 0).sum(dtype=np.float64)) / count
    iteration.metrics |= {"kl/coef": rollout.kl_coef, "kl/response": kl_per_response}
    after = adapted(rollout.kl_coef, kl_per_response, cfg.kl.target, count / cfg.kl.horizon)
    state = update(iteration, state, rollout, credit)
    return state._replace(options={KEPT: np.array(after, np.float64)})


class AdaptiveMethod(Method):
    """A method whose objective gets the KL's coefficient together with a batch's rows."""

    def objective(self, model: Decoder, cfg: Config) -> PolicyObjective:
        return adaptive(super().objective(model, cfg))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptiveObjective(PolicyObjective):
    """A policy loss that gets the KL's coefficient together with a batch's rows.

    The coefficient is not a field, because fields are constants of the compiled program, and
    each new coefficient would need a new compilation.
    """

    def rows_of(self, batch: Batch, rollout: Rollout) -> tuple[Batch, np.ndarray]:
        """(the batch, the coefficient as f32[B], once for each row)."""
        return batch, np.full(len(batch.mask), rollout.kl_coef, np.float32)

    def pack(self, rows: tuple[Batch, np.ndarray]) -> tuple[Batch, np.float32]:
        """(the packed minibatch, the coefficient as f32[]), in packed and in other rows alike."""
        batch, coef = rows
        return super().pack(batch), coef[0]

    def loss_over(self, rows: tuple[Batch, Array]) -> tuple[tuple[Batch, Array], Loss]:
        """See `PolicyObjective.loss_over`. `rows` is what `pack` returns."""
        batch, coef = rows
        plain = dataclasses.replace(self, kl_coef=coef)
        return PolicyObjective.loss_over(plain, batch)


def adaptive(objective: PolicyObjective) -> PolicyObjective:
    """The objective, changed to get the KL's coefficient together with a batch's rows.

    An objective with `kl_coef` 0 is returned unchanged, because the KL is then in the reward.
    """
    if not objective.kl_coef:
        return objective
    fields = {x.name: getattr(objective, x.name) for x in dataclasses.fields(objective)}
    return AdaptiveObjective(**fields)
