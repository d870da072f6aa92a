"""One iteration of the methods that sample first and then learn from a fixed set of solutions.

RestEM and DPO-Positive from the policy's own, supervised fine-tuning from the data set's. The loop
in `train.py` calls them in place of its own iteration.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from vinejax.analysis.episodes import episode_rows
from vinejax.baselines.dpo_positive import (
    Pair,
    Pairs,
    collate_pairs,
    make_pairs,
    pair_metrics,
    pair_step,
    with_reference,
)
from vinejax.baselines.restem import climb, epochs_of, keep_correct
from vinejax.baselines.samples import chunks, draw
from vinejax.baselines.sft import (
    list_left_out,
    sft_likelihood,
    sft_optimizer,
    sft_step,
    worked_examples,
)
from vinejax.budget import Spent, left
from vinejax.evaluate import accuracy_of
from vinejax.learner.batch import shuffled
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.update import fresh_state
from vinejax.metrics import engine_metrics, episode_metrics, grading_metrics, record
from vinejax.model.decoder import Params
from vinejax.rollout.engine import Engine
from vinejax.rollout.trajectories import sample_episodes
from vinejax.runtime.log import RunLog
from vinejax.runtime.offload import to_device
from vinejax.session import Session
from vinejax.types import Episode, TrainState


def restem(
    session: Session, sampler: Engine, state: TrainState, spent: Spent, iteration: int, log: RunLog
) -> tuple[TrainState, Spent]:
    """Sample with the policy as it is, keep what is right, start again and learn that."""
    cfg = session.cfg
    episodes, spent, values = sample_train(
        session, sampler, state.params, cfg.restem.problems, spent, iteration, log
    )
    examples = keep_correct(episodes, cfg.restem.keep)
    values["restem/kept"] = len(examples)
    if examples:
        num_updates = cfg.restem.epochs * math.ceil(len(examples) / cfg.ppo.minibatch)
        batches = epochs_of(examples, cfg.restem.epochs, cfg.ppo.minibatch, cfg.seed, iteration)
        optimizer = make_optimizer(cfg.optimizer, num_updates)
        fresh = fresh_state(session.reference, optimizer, session.mesh)
        evaluator = session.evaluator

        def accuracy(params: Params) -> float:
            return accuracy_of(session, evaluator, params, "validation")

        with log.stage("train"):
            batches = itertools.islice(batches, left(cfg, spent).updates)
            best, losses, seen = climb(session.model, optimizer, fresh, batches, cfg, accuracy)
        state = best._replace(step=state.step + best.step)
        spent = spent.plus(updates=len(losses))
        values |= {"restem/loss": np.mean(losses), "restem/accuracy": max(seen)}
        values["restem/looks"] = len(seen)
    return state, record(log, iteration, int(state.step), values, spent)


def dpo(
    session: Session, sampler: Engine, state: TrainState, spent: Spent, iteration: int, log: RunLog
) -> tuple[TrainState, Spent]:
    """Sample, pair right with wrong solutions, learn to prefer the right ones."""
    cfg, model = session.cfg, session.model
    episodes, spent, values = sample_train(
        session, sampler, state.params, cfg.dpo.problems, spent, iteration, log
    )
    pairs = make_pairs(episodes, cfg.dpo.pairs, cfg.seed)
    values["dpo/pairs"] = len(pairs)
    if pairs:
        num_updates = cfg.dpo.epochs * math.ceil(len(pairs) / cfg.ppo.minibatch)
        optimizer = make_optimizer(cfg.optimizer, num_updates)
        moving = fresh_state(state.params, optimizer, session.mesh)
        updates = []
        with log.stage("train"):
            for batch in itertools.islice(
                _pair_batches(session, pairs, iteration), left(cfg, spent).updates
            ):
                moving, stats = pair_step(
                    model, optimizer, cfg.sample.temperature, cfg.dpo, cfg.ppo.microbatch,
                    moving, batch,
                )  # fmt: skip
                updates.append(stats)
                log.progress(len(updates), num_updates)
            updates = jax.device_get(updates)
        state = moving._replace(step=state.step + moving.step)
        spent = spent.plus(updates=len(updates))
        values |= pair_metrics(updates)
    return state, record(log, iteration, int(state.step), values, spent)


def sft(
    session: Session, sampler: Engine, state: TrainState, spent: Spent, iteration: int, log: RunLog
) -> tuple[TrainState, Spent]:
    """One epoch over the data set's own solutions."""
    cfg = session.cfg
    context = session.model.cfg.context
    examples, left_out = worked_examples(session.task, session.tokenizer, cfg, context)
    list_left_out(left_out, len(examples), session.workdir)
    size = math.ceil(len(examples) / cfg.sft.batch)
    optimizer = sft_optimizer(cfg, cfg.iterations * size)
    batches = epochs_of(examples, 1, cfg.sft.batch, cfg.seed, iteration)
    state, losses = to_device(state), []
    with log.stage("train"):
        for batch in itertools.islice(batches, left(cfg, spent).updates):
            state, loss = sft_step(session.model, optimizer, state, batch, sft_likelihood(cfg))
            losses.append(loss)
            log.progress(len(losses), size)
        losses = jax.device_get(losses)
    spent = spent.plus(updates=len(losses))
    values = {"sft/loss": np.mean(losses)}
    return state, record(log, iteration, int(state.step), values, spent)


Iteration = Callable[[Session, Engine, TrainState, Spent, int, RunLog], tuple[TrainState, Spent]]
OFFLINE: dict[str, Iteration] = {"restem": restem, "dpo_positive": dpo, "sft": sft}


def sample_train(
    session: Session,
    sampler: Engine,
    params: Params,
    count: int | None,
    spent: Spent,
    iteration: int,
    log: RunLog,
) -> tuple[list[Episode], Spent, dict[str, Any]]:
    """(episodes of `count` train problems, None all; what is spent now; their metrics).

    `rollout.prompts` problems at a time. The first of these parts is written to episodes/.
    """
    cfg, rewards = session.cfg, session.rewards
    before, graded_before = dataclasses.replace(sampler.stats), rewards.stats
    chosen = draw(session.problems["train"], count, cfg.seed, iteration)
    chosen = chosen[: left(cfg, spent).prompts]
    episodes: list[Episode] = []
    with log.stage("rollout"):
        for part in chunks(chosen, cfg.rollout.prompts):
            episodes += sample_episodes(sampler, params, rewards, part, cfg, iteration)
            log.progress(len(episodes), len(chosen) * cfg.rollout.per_prompt)
        sampler.release()
    shown = episodes[: cfg.rollout.prompts * cfg.rollout.per_prompt]
    rows = episode_rows(session.tokenizer, chosen, shown, None, iteration, cfg.log.vines)
    log.episodes(iteration, rows)
    stats = sampler.stats.minus(before)
    values = episode_metrics(episodes) | engine_metrics(stats, episodes, log.timings)
    values |= grading_metrics(rewards.stats.minus(graded_before))
    spent = spent.plus(prompts=len(chosen), episodes=len(episodes), tokens=stats.decoded_tokens)
    return episodes, spent, values


def _pair_batches(session: Session, pairs: list[Pair], iteration: int) -> Iterator[Pairs]:
    cfg = session.cfg
    reference = session.reference
    longest = max(len(episode.tokens) for pair in pairs for episode in pair)
    for epoch in range(cfg.dpo.epochs):
        for part in shuffled(pairs, cfg.ppo.minibatch, cfg.seed, iteration, epoch):
            batch = collate_pairs(part, cfg.ppo.minibatch, longest)
            yield with_reference(session.model, reference, batch, cfg.sample.temperature)
