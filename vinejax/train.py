"""The loop: sample solutions, find out whose doing their reward was, update.

Where the training signal comes from is `cfg.method`; all else is the same for every method.
"""

import dataclasses
import itertools
import math
import os
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from etils import epath

from vinejax.analysis.episodes import episode_rows
from vinejax.analysis.report import build_report
from vinejax.baselines.critic import (
    Targets,
    critic_metrics,
    critic_step,
    critic_values,
    fresh_critic,
    make_critic_optimizer,
)
from vinejax.baselines.samples import draw, sample_with_spread
from vinejax.budget import Spent, left, num_critic_updates, num_updates
from vinejax.evaluate import evaluate
from vinejax.learner.batch import collate, minibatches, with_logprobs
from vinejax.learner.credit import with_credit
from vinejax.learner.objective import objective_of
from vinejax.learner.optimizer import learning_rate, make_optimizer
from vinejax.learner.step import train_step
from vinejax.learner.update import fresh_state
from vinejax.metrics import (
    engine_metrics,
    episode_metrics,
    grading_metrics,
    logprob_diff,
    record,
    update_metrics,
)
from vinejax.offline import OFFLINE
from vinejax.rollout.engine import Engine
from vinejax.rollout.trajectories import sample_episodes
from vinejax.rollout.vine import fill_values
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.runtime.distributed import barrier, is_writer
from vinejax.runtime.log import RunLog
from vinejax.runtime.offload import to_device, to_host
from vinejax.runtime.profile import profiler
from vinejax.session import Session, open_session
from vinejax.settings import Config
from vinejax.tasks.base import Split
from vinejax.types import Batch, Episode, PromptedProblem, TrainState


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a run is: what a checkpoint knows beside its state."""

    done: int = 0  # iterations
    best_accuracy: float = -math.inf  # on the validation split
    spent: Spent = Spent()


def train(cfg: Config, path: str | os.PathLike) -> epath.Path:
    """A run from the start, or from the newest checkpoint, to `cfg.iterations` or its budget.

    Returns the workdir, which then holds checkpoints, metrics, episodes and `report.html`.
    """
    with (
        open_session(cfg, path) as session,
        Checkpoints(session.workdir / "checkpoints", cfg.checkpoint.keep) as checkpoints,
        Checkpoints(session.workdir / "best", keep=1) as best,
        profiler(cfg.profile, session.workdir / "profile") as profile,
    ):
        workdir = session.workdir
        state, progress = resume(session, checkpoints)
        done, best_accuracy, spent = progress.done, progress.best_accuracy, progress.spent
        with RunLog(workdir, cfg.log, cfg.iterations, is_writer(), resumed_at=done) as log:
            sampler, evaluator = session.sampler, session.evaluator

            def accuracy(state: TrainState, split: Split, done: int) -> float:
                step = int(state.step)
                return evaluate(session, evaluator, state.params, split, done, step, log)

            if done == 0:
                accuracy(state, "test", 0)
                best_accuracy = accuracy(state, "validation", 0)
            while done < cfg.iterations and not left(cfg, spent).nothing:
                profile(done)
                one_iteration = OFFLINE.get(cfg.method, iterate)
                state, spent = one_iteration(session, sampler, state, spent, done, log)
                state = parked(cfg, state)
                done += 1
                last = done if left(cfg, spent).nothing else cfg.iterations
                if is_due(done, cfg.eval.every, last):
                    found = accuracy(state, "validation", done)
                    if found > best_accuracy:
                        best_accuracy = found
                        best.save_params(done, state.params, {"pass_at_1": found})
                if is_due(done, cfg.checkpoint.every, last):
                    meta = {"best_accuracy": best_accuracy, "spent": dataclasses.asdict(spent)}
                    checkpoints.save(done, state, meta)
            if done > 0:
                accuracy(state, "test", done)
            if is_writer():
                log.message(f"report: {build_report(workdir)}")
        barrier("the end")  # a host that ends while others are at work would end them
    return workdir


def iterate(
    session: Session, sampler: Engine, state: TrainState, spent: Spent, iteration: int, log: RunLog
) -> tuple[TrainState, Spent]:
    """One iteration of a policy-gradient method."""
    cfg, rewards, model = session.cfg, session.rewards, session.model
    before, graded_before = dataclasses.replace(sampler.stats), rewards.stats
    with log.stage("rollout"):
        chosen, episodes, spent = sample(session, sampler, state, spent, iteration)
    with log.stage("value"):
        if cfg.method == "vineppo":
            episodes = fill_values(sampler, state.params, rewards, chosen, episodes, cfg, iteration)
        sampler.release()
    with log.stage("score"):
        batch = collate(episodes, rows=cfg.ppo.minibatch)
        batch = with_logprobs(model, state.params, session.reference, batch, episodes, cfg)
        old_values = values_of(session, state, batch)
        credit = with_credit(batch, episodes, cfg, old_values)
    with log.stage("train"):
        barrier("train", [(episode.tokens, episode.rewards) for episode in episodes])
        targets = None
        if old_values is not None and credit.returns is not None:
            targets = Targets(old_values, credit.returns)
        tried = itertools.islice(
            all_minibatches(cfg, (credit.batch, targets), iteration), left(cfg, spent).updates
        )
        state, values = update(session, to_device(state), tried, iteration)
    rows = episode_rows(
        session.tokenizer, chosen, episodes, credit.by_step, iteration, cfg.log.vines, credit.values
    )
    log.episodes(iteration, rows)
    stats = sampler.stats.minus(before)
    values |= episode_metrics(episodes) | logprob_diff(episodes, credit.batch)
    values |= engine_metrics(stats, episodes, log.timings)
    values |= grading_metrics(rewards.stats.minus(graded_before))
    spent = spent.plus(tokens=stats.decoded_tokens, updates=values.pop("updates"))
    return state, record(log, iteration, int(state.step), values, spent)


def sample(
    session: Session, sampler: Engine, state: TrainState, spent: Spent, iteration: int
) -> tuple[list[PromptedProblem], list[Episode], Spent]:
    """(the iteration's problems, the episodes to learn from, what is spent now)."""
    cfg = session.cfg

    def episodes_of(problems: list[PromptedProblem]) -> list[Episode]:
        return sample_episodes(sampler, state.params, session.rewards, problems, cfg, iteration)

    count = min(cfg.rollout.prompts, left(cfg, spent).prompts)
    if cfg.method == "dapo":
        wide = min(cfg.dapo.rounds * count, left(cfg, spent).prompts)
        chosen = draw(session.problems["train"], wide, cfg.seed, iteration)
        episodes, everything = sample_with_spread(episodes_of, chosen, count, cfg.dapo.rounds)
    else:
        chosen = draw(session.problems["train"], count, cfg.seed, iteration)
        episodes = everything = episodes_of(chosen)
    prompts = len(everything) // cfg.rollout.per_prompt
    return chosen, episodes, spent.plus(prompts=prompts, episodes=len(everything))


def values_of(session: Session, state: TrainState, batch: Batch) -> np.ndarray | None:
    """The critic's values of the iteration's episodes, where there is a critic."""
    if state.critic is None:
        return None
    ppo = session.cfg.ppo
    size = ppo.microbatch or ppo.minibatch
    return critic_values(session.model, to_device(state.critic.params), batch, size)


Rows = tuple[Batch, Targets | None]


def all_minibatches(cfg: Config, rows: Rows, iteration: int) -> Iterator[Rows]:
    for epoch in range(cfg.ppo.epochs):
        yield from minibatches(rows, cfg.ppo.minibatch, cfg.seed, iteration, epoch)


def update(
    session: Session, state: TrainState, rows: Iterator[Rows], iteration: int
) -> tuple[TrainState, dict[str, Any]]:
    """(the state after updates on all minibatches, their metrics); 'updates' are the policy's."""
    cfg, model = session.cfg, session.model
    optimizer, objective = make_optimizer(cfg.optimizer, num_updates(cfg)), objective_of(cfg)
    of_critic = make_critic_optimizer(cfg, num_critic_updates(cfg))
    policy, critic = state._replace(critic=None), state.critic
    updates, critic_updates = [], []
    for batch, targets in rows:
        if critic is not None:
            critic, stats = critic_step(
                model, of_critic, cfg.critic.clip, cfg.ppo.microbatch, critic, (batch, targets)
            )
            critic_updates.append(stats)
        if critic is None or iteration >= cfg.critic.warmup_iterations:
            policy, stats = train_step(model, optimizer, objective, policy, batch)
            updates.append(stats)
    updates, critic_updates = jax.device_get((updates, critic_updates))
    values = {"updates": len(updates)} | (update_metrics(updates) if updates else {})
    values |= critic_metrics(critic_updates) if critic_updates else {}
    rate = learning_rate(cfg.optimizer, num_updates(cfg))
    values["actor/lr"] = float(rate(policy.step - 1)) if updates else 0.0
    return policy._replace(critic=critic), values


def parked(cfg: Config, state: TrainState) -> TrainState:
    """The state between updates: with `offload.optimizer`, what only they need leaves the devices.

    `to_device` brings it back.
    """
    if not cfg.offload.optimizer:
        return state
    critic = None if state.critic is None else to_host(state.critic)
    return state._replace(opt_state=to_host(state.opt_state), critic=critic)


def is_due(done: int, every: int, last: int) -> bool:
    """After every `every` iterations (0: never) and after the last."""
    return done == last or (every > 0 and done % every == 0)


def resume(session: Session, checkpoints: Checkpoints) -> tuple[TrainState, Progress]:
    """State and progress of the newest checkpoint, or of the start."""
    cfg = session.cfg
    start = session.reference
    state = fresh_state(start, make_optimizer(cfg.optimizer, 1), session.mesh)
    if cfg.method == "ppo":
        critic = fresh_critic(session.model, start, cfg.seed, session.mesh)
        optimizer = make_critic_optimizer(cfg, 1)
        state = state._replace(critic=fresh_state(critic, optimizer, session.mesh))
    done = checkpoints.latest()
    if done is None:
        return parked(cfg, state), Progress()
    meta: dict[str, Any]
    state, meta = checkpoints.restore(done, state)
    return parked(cfg, state), Progress(done, meta["best_accuracy"], Spent(**meta["spent"]))
