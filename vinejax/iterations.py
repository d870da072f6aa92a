"""One iteration of each kind of method, side by side. `methods.py` says which method has which.

Policy gradients sample, assign credit and update. RestEM and DPO-Positive sample first and then
learn from a fixed set of solutions; supervised fine-tuning learns from the data set's solutions.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax

from vinejax import metrics
from vinejax.analysis.episodes import episode_rows
from vinejax.baselines.critic import (
    Targets,
    critic_metrics,
    critic_objective,
    critic_values,
    make_critic_optimizer,
)
from vinejax.baselines.dpo_positive import (
    Pair,
    PairObjective,
    Pairs,
    collate_pairs,
    make_pairs,
    pair_metrics,
    with_reference,
)
from vinejax.baselines.restem import climb, keep_correct
from vinejax.budget import Left, Spent, left, num_critic_updates, num_updates
from vinejax.evaluate import accuracy_of
from vinejax.learner.batch import (
    Rollout,
    collate,
    epochs_of,
    minibatch_rows,
    minibatches,
    shuffled,
    step_layout,
)
from vinejax.learner.credit import Credit, assign_credit
from vinejax.learner.optimizer import learning_rate, make_optimizer
from vinejax.learner.policy import PolicyObjective, policy_objective
from vinejax.learner.score import with_logprobs
from vinejax.learner.update import Objective, Update, fresh_state, update_step
from vinejax.methods import find_method
from vinejax.model.decoder import Params
from vinejax.problems import chunks, draw, sample_with_spread
from vinejax.rollout.resets import sample_with_resets
from vinejax.rollout.vine import fill_values
from vinejax.runtime.distributed import barrier
from vinejax.runtime.log import RunLog
from vinejax.runtime.offload import to_device
from vinejax.session import Session
from vinejax.settings import Config
from vinejax.types import Batch, Episode, PromptedProblem, RunState, TrainState
from vinejax.warmup import list_left_out, sft_objective, sft_optimizer, worked_examples


class Iteration:
    """The parts common to all kinds of iterations: sampling, counting and recording."""

    def __init__(self, session: Session, log: RunLog, number: int, spent: Spent):
        """`number` counts iterations from 0; `spent` has the run's totals before this one."""
        self.session = session
        self.cfg: Config = session.cfg
        self.log = log
        self.number = number
        self.spent = spent
        self.metrics: dict[str, Any] = {}
        self._engine_before = dataclasses.replace(session.sampler.stats)
        self._graded_before = session.graded.stats

    @property
    def left(self) -> Left:
        """The rest of the run's budget."""
        return left(self.cfg, self.spent)

    def draw(self, count: int | None) -> list[PromptedProblem]:
        """`count` problems of the train split (None: all), or as many as the budget allows."""
        problems = draw(self.session.problems["train"], count, self.cfg.seed, self.number)
        return problems[: self.left.prompts]

    def sample(self, params: Params, problems: list[PromptedProblem]) -> list[Episode]:
        """Graded solutions of the problems, which count as spent."""
        session = self.session
        episodes = sample_with_resets(
            session.sampler,
            params,
            session.graded,
            problems,
            self.cfg,
            self.number,
            most=self.left.groups,
        )
        self.spent = self.spent.plus(prompts=len(problems), episodes=len(episodes))
        return episodes

    def sample_train(
        self, params: Params, count: int | None
    ) -> tuple[list[PromptedProblem], list[Episode]]:
        """`count` train problems and their episodes, `rollout.prompts` problems at a time."""
        problems = self.draw(count)
        episodes: list[Episode] = []
        with self.log.stage("rollout"):
            for part in chunks(problems, self.cfg.rollout.prompts):
                episodes += self.sample(params, part)
                self.log.progress(len(episodes), len(problems) * self.cfg.rollout.per_prompt)
            self.session.sampler.release()
        return problems, episodes

    def minibatch_rows(self, episodes: list[Episode]) -> int:
        """Rows of a minibatch, such that updates are as many as solutions sampled would make."""
        ppo = self.cfg.ppo
        problems = len({episode.problem_id for episode in episodes})
        updates = math.ceil(problems * self.cfg.rollout.per_prompt / ppo.minibatch)
        return minibatch_rows(len(episodes), updates, ppo.minibatch)

    def record_sampling(
        self,
        problems: list[PromptedProblem],
        episodes: list[Episode],
        sampled: list[Episode],
        credit: Credit | None = None,
    ) -> None:
        """Writes `episodes`, those to learn from, to a file; takes the metrics of all `sampled`."""
        session, vines = self.session, self.cfg.log.vines
        by_step, values = (credit.by_step, credit.values) if credit else (None, None)
        rows = episode_rows(
            session.tokenizer, problems, episodes, by_step, self.number, vines, values
        )
        self.log.episodes(self.number, rows)
        stats = session.sampler.stats.minus(self._engine_before)
        graded = session.graded.stats.minus(self._graded_before)
        self.metrics |= metrics.episode_metrics(sampled) | metrics.value_metrics(episodes, by_step)
        if self.cfg.reset.source != "none":
            self.metrics |= metrics.reset_metrics(sampled)
        self.metrics |= metrics.engine_metrics(stats, episodes, self.log.timings)
        self.metrics |= metrics.grading_metrics(graded)
        self.spent = self.spent.plus(tokens=stats.decoded_tokens)

    def record(self, state: RunState) -> Spent:
        """Writes the iteration's line of metrics; returns the run's new totals."""
        self.spent = self.spent.timed(self.log.timings)
        values = self.metrics | self.log.timings | self.spent.metrics()
        self.log.metrics(self.number, int(state.policy.step), "train", values)
        return self.spent


# --- policy gradients


def policy_gradient(it: Iteration, state: RunState) -> RunState:
    """Sample solutions, estimate values, assign credit, update."""
    cfg, session, params = it.cfg, it.session, state.policy.params
    method = find_method(cfg.method)
    objective = policy_objective(session.model, cfg)
    with it.log.stage("rollout"):
        problems, episodes, sampled = sample_solutions(it, params, method.needs_spread)
    rows = episodes  # of the batch: the solutions, and what else is trained on
    with it.log.stage("value"):
        if method.values == "monte_carlo":
            calls = session.sampler.stats.calls
            rows = fill_values(
                session.sampler, params, session.graded, problems, episodes, cfg, it.number
            )
            it.metrics["values/waves"] = session.sampler.stats.calls - calls
        session.sampler.release()
    with it.log.stage("score"):
        rollout = scored_rollout(it, state, rows)
        credit = assign_credit(rollout, cfg, objective.whiten)
    with it.log.stage("train"):
        barrier("train", [(episode.tokens, episode.rewards) for episode in rows])
        state = update_on(it, state, objective, rollout, credit)
    it.metrics |= metrics.logprob_diff(rows, rollout.batch)
    it.metrics["actor/rows"] = len(rows)
    it.record_sampling(problems, rows[: len(episodes)], sampled, credit)
    return state


def sample_solutions(
    it: Iteration, params: Params, needs_spread: bool
) -> tuple[list[PromptedProblem], list[Episode], list[Episode]]:
    """(problems that were drawn, episodes to learn from, all episodes that were sampled)."""
    count = min(it.cfg.rollout.prompts, it.left.prompts)
    if not needs_spread:
        problems = it.draw(count)
        episodes = it.sample(params, problems)
        return problems, episodes, episodes
    rounds = it.cfg.dapo.rounds
    problems = it.draw(rounds * count)
    episodes, sampled = sample_with_spread(
        lambda part: it.sample(params, part), problems, count, rounds
    )
    it.metrics["rollout/discarded"] = len(sampled) - len(episodes)
    return problems, episodes, sampled


def scored_rollout(it: Iteration, state: RunState, episodes: list[Episode]) -> Rollout:
    """The episodes as a batch, with log-probabilities and, where there is a critic, its values."""
    session, ppo = it.session, it.cfg.ppo
    size = ppo.microbatch or ppo.minibatch
    batch = collate(episodes, rows=it.minibatch_rows(episodes))
    batch = with_logprobs(
        session.model,
        state.policy.params,
        session.load_reference(),
        batch,
        episodes,
        it.cfg.sample.temperature,
        size,
    )
    values = None
    if state.critic is not None:
        values = critic_values(session.model, to_device(state.critic.params), batch, size)
    return Rollout(episodes, batch, step_layout(batch, episodes), values)


Rows = tuple[Batch, Targets | None]


def update_on(
    it: Iteration, state: RunState, objective: PolicyObjective, rollout: Rollout, credit: Credit
) -> RunState:
    """The state after `ppo.epochs` over the rollout; a critic learns from the same minibatches.

    In the first `critic.warmup_iterations` the critic alone is updated.
    """
    cfg, (policy, critic) = it.cfg, to_device(state)
    optimizer = make_optimizer(cfg.optimizer, num_updates(cfg))
    value_objective = critic_objective(it.session.model, cfg)
    value_optimizer = make_critic_optimizer(cfg, num_critic_updates(cfg))
    batch = rollout.batch._replace(advantages=credit.advantages, mask=credit.mask)
    targets = None
    if rollout.values is not None and credit.returns is not None:
        targets = Targets(rollout.values, np.asarray(credit.returns))
    updates: list[Update] = []
    value_updates: list[Update] = []
    size = it.minibatch_rows(rollout.episodes)
    stream = _minibatches(it, (batch, targets), size)
    for minibatch, goal in itertools.islice(stream, it.left.updates):
        if critic is not None:
            critic, update = update_step(
                value_objective, value_optimizer, critic, (minibatch, goal)
            )
            value_updates.append(update)
        if critic is None or it.number >= cfg.critic.warmup_iterations:
            policy, update = update_step(objective, optimizer, policy, minibatch)
            updates.append(update)
    updates, value_updates = jax.device_get((updates, value_updates))
    it.metrics["actor/lr"] = 0.0
    if updates:
        rate = learning_rate(cfg.optimizer, num_updates(cfg))
        it.metrics |= metrics.update_metrics(updates)
        it.metrics["actor/lr"] = float(rate(policy.step - 1))
    if value_updates:
        it.metrics |= critic_metrics(value_updates)
    it.spent = it.spent.plus(updates=len(updates))
    return RunState(policy, critic)


def _minibatches(it: Iteration, rows: Rows, size: int) -> Iterator[Rows]:
    ppo = it.cfg.ppo
    for epoch in range(ppo.epochs):
        yield from minibatches(rows, size, it.cfg.seed, it.number, epoch)


# --- methods that learn from a fixed set of solutions


def restem(it: Iteration, state: RunState) -> RunState:
    """RestEM: sample with the policy, keep right solutions, train the start's weights on them."""
    cfg, session = it.cfg, it.session
    problems, episodes = it.sample_train(state.policy.params, cfg.restem.problems)
    it.record_sampling(problems, _shown(it, episodes), episodes)
    examples = keep_correct(episodes, cfg.restem.keep)
    it.metrics["restem/kept"] = len(examples)
    if not examples:
        return state
    size = cfg.ppo.minibatch
    optimizer = make_optimizer(cfg.optimizer, cfg.restem.epochs * math.ceil(len(examples) / size))
    fresh = fresh_state(session.load_reference(), optimizer, session.mesh)
    batches = epochs_of(examples, cfg.restem.epochs, size, cfg.seed, it.number)
    with it.log.stage("train"):
        best, losses, accuracies = climb(
            session.model,
            optimizer,
            fresh,
            itertools.islice(batches, it.left.updates),
            cfg,
            lambda params: accuracy_of(session, params, "validation"),
        )
    it.spent = it.spent.plus(updates=len(losses))
    it.metrics["restem/loss"] = np.mean(losses)
    it.metrics["restem/accuracy"] = max(accuracies)
    it.metrics["restem/evaluations"] = len(accuracies)
    return RunState(_continued(state, best))


def dpo_positive(it: Iteration, state: RunState) -> RunState:
    """DPO-Positive: sample, pair right with wrong solutions, learn to prefer the right."""
    cfg, session = it.cfg, it.session
    problems, episodes = it.sample_train(state.policy.params, cfg.dpo.problems)
    it.record_sampling(problems, _shown(it, episodes), episodes)
    pairs = make_pairs(episodes, cfg.dpo.pairs, cfg.seed)
    it.metrics["dpo/pairs"] = len(pairs)
    if not pairs:
        return state
    objective = PairObjective(
        model=session.model,
        microbatch=cfg.ppo.microbatch,
        temperature=cfg.sample.temperature,
        beta=cfg.dpo.beta,
        penalty=cfg.dpo.penalty,
    )
    total = cfg.dpo.epochs * math.ceil(len(pairs) / cfg.ppo.minibatch)
    optimizer = make_optimizer(cfg.optimizer, total)
    policy = fresh_state(state.policy.params, optimizer, session.mesh)
    policy, updates = _train(it, objective, optimizer, policy, _pair_batches(it, pairs), total)
    it.metrics |= pair_metrics(updates)
    return RunState(_continued(state, policy))


def _pair_batches(it: Iteration, pairs: list[Pair]) -> Iterator[Pairs]:
    """The minibatches of all epochs, with the reference model's log-probabilities."""
    cfg, session = it.cfg, it.session
    reference = session.load_reference()
    longest = max(len(episode.tokens) for pair in pairs for episode in pair)
    for epoch in range(cfg.dpo.epochs):
        for part in shuffled(pairs, cfg.ppo.minibatch, cfg.seed, it.number, epoch):
            batch = collate_pairs(part, cfg.ppo.minibatch, longest)
            yield with_reference(session.model, reference, batch, cfg.sample.temperature)


def supervised(it: Iteration, state: RunState) -> RunState:
    """Supervised fine-tuning: one epoch over the data set's own solutions."""
    cfg, session = it.cfg, it.session
    context = session.model.cfg.context
    examples, left_out = worked_examples(session.task, session.tokenizer, cfg, context)
    list_left_out(left_out, len(examples), session.workdir)
    total = math.ceil(len(examples) / cfg.sft.batch)
    objective = sft_objective(session.model, cfg)
    optimizer = sft_optimizer(cfg, cfg.iterations * total)
    batches = epochs_of(examples, 1, cfg.sft.batch, cfg.seed, it.number)
    policy = to_device(state.policy)
    policy, updates = _train(it, objective, optimizer, policy, batches, total)
    it.metrics["sft/loss"] = np.mean([update.sums for update in updates])
    return RunState(policy)


def _train(
    it: Iteration,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    policy: TrainState,
    batches: Iterator[Any],
    total: int,
) -> tuple[TrainState, list[Update]]:
    """Updates on the `total` batches, or on as many as the budget allows; counts them."""
    updates: list[Update] = []
    with it.log.stage("train"):
        for batch in itertools.islice(batches, it.left.updates):
            policy, update = update_step(objective, optimizer, policy, batch)
            updates.append(update)
            it.log.progress(len(updates), total)
        updates = jax.device_get(updates)
    it.spent = it.spent.plus(updates=len(updates))
    return policy, updates


def _shown(it: Iteration, episodes: list[Episode]) -> list[Episode]:
    """The episodes that are written to a file: those of the first `rollout.prompts` problems."""
    return episodes[: it.cfg.rollout.prompts * it.cfg.rollout.per_prompt]


def _continued(state: RunState, policy: TrainState) -> TrainState:
    """`policy`, whose optimizer began anew in this iteration, with the step count of the run."""
    return policy._replace(step=state.policy.step + policy.step)
