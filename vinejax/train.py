"""The loop: sample solutions, value their steps, score, update."""

import dataclasses
import math
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from vinejax.analysis.episodes import episode_rows
from vinejax.analysis.report import build_report
from vinejax.config import Config
from vinejax.evaluate import evaluate
from vinejax.learner.batch import collate, minibatches, with_advantages, with_logprobs
from vinejax.learner.metrics import engine_metrics, episode_metrics, logprob_diff, update_metrics
from vinejax.learner.optimizer import learning_rate, make_optimizer
from vinejax.learner.step import train_step
from vinejax.rollout.engine import Engine
from vinejax.rollout.trajectories import PromptedProblem, sample_episodes
from vinejax.rollout.vine import fill_values
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.runtime.log import RunLog
from vinejax.runtime.profile import profiler
from vinejax.session import Session, open_session
from vinejax.tasks.base import Split
from vinejax.types import TrainState, row_seed


def train(cfg: Config, path: str | os.PathLike) -> epath.Path:
    """VinePPO from the start, or from the newest checkpoint, to `cfg.iterations`.

    Returns the workdir, which then holds checkpoints, metrics, episodes and `report.html`.
    """
    session = open_session(cfg, path)
    workdir = session.workdir
    optimizer = make_optimizer(cfg.optimizer, num_updates(cfg))
    with (
        Checkpoints(workdir / "checkpoints", cfg.checkpoint.keep) as checkpoints,
        Checkpoints(workdir / "best", keep=1) as best,
        profiler(cfg.profile, workdir / "profile") as profile,
    ):
        state, done, best_accuracy = resume(session, optimizer, checkpoints)
        with RunLog(workdir, cfg.log, cfg.iterations, resumed_at=done) as log:
            sampler, evaluator = session.sampler, session.evaluator

            def accuracy(state: TrainState, split: Split, done: int) -> float:
                step = int(state.step)
                return evaluate(session, evaluator, state.params, split, done, step, log)

            if done == 0:
                accuracy(state, "test", 0)
                best_accuracy = accuracy(state, "validation", 0)
            for iteration in range(done, cfg.iterations):
                profile(iteration)
                state = iterate(session, sampler, optimizer, state, iteration, log)
                done = iteration + 1
                if is_due(done, cfg.eval.every, cfg.iterations):
                    found = accuracy(state, "validation", done)
                    if found > best_accuracy:
                        best_accuracy = found
                        best.save_params(done, state.params, {"pass_at_1": found})
                if is_due(done, cfg.checkpoint.every, cfg.iterations):
                    checkpoints.save(done, state, {"best_accuracy": best_accuracy})
            if done > 0:
                accuracy(state, "test", done)
            log.message(f"report: {build_report(workdir)}")
    return workdir


def iterate(
    session: Session,
    sampler: Engine,
    optimizer: optax.GradientTransformation,
    state: TrainState,
    iteration: int,
    log: RunLog,
) -> TrainState:
    """One iteration of VinePPO."""
    cfg, task, model = session.cfg, session.task, session.model
    chosen = draw(session.problems["train"], cfg, iteration)
    before = dataclasses.replace(sampler.stats)
    with log.stage("rollout"):
        episodes = sample_episodes(sampler, state.params, task, chosen, cfg, iteration)
    with log.stage("value"):
        episodes = fill_values(sampler, state.params, task, chosen, episodes, cfg, iteration)
    with log.stage("score"):
        batch = collate(episodes, rows=cfg.ppo.minibatch)
        batch = with_logprobs(model, state.params, session.start, batch, cfg)
        batch, step_advantages = with_advantages(batch, episodes, cfg.ppo)
        jax.block_until_ready(batch)
    with log.stage("train"):
        updates = []
        for epoch in range(cfg.ppo.epochs):
            for minibatch in minibatches(batch, cfg.ppo.minibatch, cfg.seed, iteration, epoch):
                state, stats = train_step(
                    model, optimizer, cfg.sample.temperature, cfg.ppo, cfg.kl, state, minibatch
                )
                updates.append(stats)
        updates = jax.device_get(updates)
    rows = episode_rows(
        session.tokenizer, chosen, episodes, step_advantages, iteration, cfg.log.vines
    )
    log.episodes(iteration, rows)
    values = episode_metrics(episodes) | logprob_diff(episodes, batch) | update_metrics(updates)
    values |= engine_metrics(sampler.stats.minus(before), episodes, log.timings)
    values["actor/lr"] = float(learning_rate(cfg.optimizer, num_updates(cfg))(state.step - 1))
    log.metrics(iteration, int(state.step), "train", values | log.timings)
    return state


def draw(problems: list[PromptedProblem], cfg: Config, iteration: int) -> list[PromptedProblem]:
    """The iteration's problems: distinct within it, as on_policy_episode_generator.py:261-270."""
    rng = np.random.default_rng(row_seed(cfg.seed, iteration, "problems"))
    return [problems[i] for i in rng.permutation(len(problems))[: cfg.rollout.prompts]]


def num_updates(cfg: Config) -> int:
    """Optimizer updates of the whole run: the learning rate decays over them."""
    episodes = cfg.rollout.prompts * cfg.rollout.per_prompt
    return cfg.iterations * cfg.ppo.epochs * math.ceil(episodes / cfg.ppo.minibatch)


def is_due(done: int, every: int, last: int) -> bool:
    """After every `every` iterations (0: never) and after the last."""
    return done == last or (every > 0 and done % every == 0)


def resume(
    session: Session, optimizer: optax.GradientTransformation, checkpoints: Checkpoints
) -> tuple[TrainState, int, float]:
    """(state, iterations done, best validation accuracy) of the newest checkpoint or the start."""
    state = fresh_state(session, optimizer)
    done = checkpoints.latest()
    if done is None:
        return state, 0, -math.inf
    meta: dict[str, Any]
    state, meta = checkpoints.restore(done, state)
    return state, done, meta["best_accuracy"]


def fresh_state(session: Session, optimizer: optax.GradientTransformation) -> TrainState:
    """The start, all of it on the mesh: a moment lies where its weight does.

    What an update returns is then placed as what it was given, and the next compiles nothing.
    """
    params = jax.tree.map(jnp.copy, session.start)  # updates donate theirs; the start stays
    everywhere = NamedSharding(session.mesh, PartitionSpec())
    shardings = optax.tree_map_params(
        optimizer,
        lambda _, param: param.sharding,
        jax.eval_shape(optimizer.init, params),
        params,
        transform_non_params=lambda _: everywhere,
    )
    opt_state = jax.jit(optimizer.init, out_shardings=shardings)(params)
    return TrainState(jax.device_put(jnp.int32(0), everywhere), params, opt_state)
