"""The price of a trained token in sampled tokens, on this machine: w.

Step credit spends sampled tokens (continuations) to need fewer trained ones (solutions). Whether
that pays depends on w, so it is measured, with the run's own settings of both.
"""

import statistics
import time
from typing import NamedTuple

import jax

from vinejax.bench.estimators import Fixed
from vinejax.learner.batch import collate, minibatches
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.policy import policy_objective
from vinejax.learner.score import with_logprobs
from vinejax.learner.update import fresh_state, update_step
from vinejax.settings import Config
from vinejax.types import Episode

TIMES = 3  # that training is measured after it is compiled


class Price(NamedTuple):
    """Seconds of a token, and their ratio."""

    sampled: float  # per decoded token
    trained: float  # per response token that is scored and updated on, in all epochs together

    @property
    def w(self) -> float:
        """Sampled tokens that take as long as one trained token."""
        return self.trained / self.sampled


def training_seconds(fixed: Fixed, cfg: Config, episodes: list[Episode]) -> float:
    """Median seconds of one iteration's training on the episodes, beside its compilation.

    That is what a policy gradient does after credit is known: log-probabilities by the policy and
    the reference model, and `ppo.epochs` of updates. The policy stays as it is.
    """
    session, ppo = fixed.session, cfg.ppo
    objective = policy_objective(session.model, cfg)
    optimizer = make_optimizer(cfg.optimizer, 1)
    size = ppo.pass_rows
    seconds = []
    for _ in range(TIMES + 1):
        state = fresh_state(fixed.params, optimizer, session.mesh)
        jax.block_until_ready(state)
        start = time.perf_counter()
        batch = with_logprobs(
            session.model,
            fixed.params,
            session.load_reference(),
            collate(episodes, rows=ppo.minibatch),
            episodes,
            cfg.sample.temperature,
            size,
        )
        for epoch in range(ppo.epochs):
            for rows in minibatches(batch, ppo.minibatch, cfg.seed, 0, epoch):
                state, _ = update_step(objective, optimizer, state, rows)
        jax.block_until_ready(state)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])
