"""Measures w, the price of a trained token in sampled tokens, on this machine.

Step credit spends sampled tokens (continuations) to need fewer trained tokens (solutions). Whether
that pays depends on w, so the bench measures w with the run's settings of sampling and training.
"""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import optax

from vinejax.core.settings import Config
from vinejax.core.types import Batch, Episode
from vinejax.learner.batch import minibatches
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.update import Objective, fresh_state, update_step
from vinejax.methods.compose import method_of
from vinejax.methods.ppo import Targets, critic_objective, make_critic_optimizer
from vinejax.model.decoder import Params
from vinejax.tools.bench.estimators import FixedParts

TIMES = 3  # measurements after a first one, which includes compiling


class Price(NamedTuple):
    """Seconds per sampled and per trained token, and their ratio."""

    sampled: float  # per decoded token
    trained: float  # per response token, for log-probabilities and for updates in all epochs

    @property
    def w(self) -> float:
        """The number of sampled tokens that take as long as one trained token."""
        return self.trained / self.sampled


def training_seconds(parts: FixedParts, cfg: Config, episodes: list[Episode]) -> float:
    """Median seconds of one iteration's training on the episodes, without compiling.

    Training computes log-probabilities by the policy and, if the method reads them, by the
    reference model; then come `ppo.epochs` epochs of updates. The updated weights are discarded,
    so the policy in `parts` does not change. Advantages and further arrays that a loss may read are
    zeros here, because the time does not depend on their values.
    """
    method = method_of(cfg)

    def rows() -> Batch:
        batch = parts.batch(cfg, episodes, cfg.ppo.minibatch)
        batch = parts.scored(cfg, episodes, batch, method.reads_reference(cfg))
        nothing = np.zeros(batch.mask.shape, np.int32)
        return batch._replace(loss_extra=nothing)

    optimizer = make_optimizer(cfg.optimizer, 1)
    objective = method.objective(parts.session.model, cfg)
    return _median_seconds(parts, cfg, parts.params, (objective, optimizer), rows)


def critic_training_seconds(parts: FixedParts, cfg: Config, episodes: list[Episode]) -> float:
    """Median seconds of one iteration's training of the critic, without compiling.

    Training is `ppo.epochs` epochs of updates on the policy's minibatches. Computing the critic's
    values is not included. The targets here are the critic's own values, because the time does not
    depend on the targets. The updated weights are discarded, so the critic in `parts` is unchanged.
    """
    assert parts.critic is not None
    batch = parts.batch(cfg, episodes, cfg.ppo.minibatch)
    values = parts.critic_values(cfg, batch)
    optimizer = make_critic_optimizer(cfg, 1)
    objective = critic_objective(parts.session.model, cfg)
    targets = Targets(values, values)
    return _median_seconds(
        parts, cfg, parts.critic, (objective, optimizer), lambda: (batch, targets)
    )


def _median_seconds(
    parts: FixedParts,
    cfg: Config,
    params: Params,
    trained_by: tuple[Objective, optax.GradientTransformation],
    make_rows: Callable[[], Batch | tuple[Batch, Targets]],
) -> float:
    """The median of the seconds that `make_rows` and training on its rows take together.

    Training is `ppo.epochs` epochs of updates that start at `params`; `trained_by` has the
    objective and the optimizer. A first measurement is left out, because its time includes
    compiling.
    """
    objective, optimizer = trained_by
    seconds = []
    for _ in range(TIMES + 1):
        state = fresh_state(params, optimizer, parts.session.mesh)
        jax.block_until_ready(state)
        start = time.perf_counter()
        rows = make_rows()
        for epoch in range(cfg.ppo.epochs):
            for minibatch in minibatches(rows, cfg.ppo.minibatch, cfg.seed, 0, epoch):
                packed = objective.pack(minibatch)
                state, _ = update_step(objective, optimizer, state, packed, parts.session.base)
        jax.block_until_ready(state)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])
