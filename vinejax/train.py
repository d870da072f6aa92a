"""The loop: sample solutions, assign credit, update. `iterations.py` has one iteration."""

import dataclasses
import math
import os
from typing import Any

from etils import epath

from vinejax import iterations
from vinejax.analysis.report import build_report
from vinejax.baselines.critic import fresh_critic, make_critic_optimizer
from vinejax.baselines.single_stream import fresh_tracker
from vinejax.budget import Spent, left
from vinejax.context import Iteration
from vinejax.evaluate import evaluate
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.update import fresh_state
from vinejax.methods import find_method
from vinejax.runtime.checkpoint import Checkpoints, DamagedError
from vinejax.runtime.distributed import barrier, is_writer
from vinejax.runtime.log import RunLog
from vinejax.runtime.offload import to_host
from vinejax.runtime.profile import profiler
from vinejax.session import Session, open_session
from vinejax.settings import Config
from vinejax.types import RunState


@dataclasses.dataclass
class Progress:
    """How far a run is; a checkpoint holds it beside the state."""

    done: int = 0  # iterations
    best_accuracy: float = -math.inf  # on the validation split
    evaluated: int = 0  # iterations that were done when validation was last looked at
    spent: Spent = Spent()


def train(cfg: Config, path: str | os.PathLike) -> epath.Path:
    """Train from the start, or from the newest checkpoint, to `cfg.iterations` or the budget's end.

    Returns the workdir, which then holds checkpoints, metrics, episodes and `report.html`.
    """
    one_iteration = getattr(iterations, find_method(cfg.method).iteration)
    with (
        open_session(cfg, path, trains=True) as session,
        Checkpoints(session.workdir / "checkpoints", cfg.checkpoint.keep) as checkpoints,
        Checkpoints(session.workdir / "best", keep=1) as best,
        profiler(cfg.profile, session.workdir / "profile") as profile,
    ):
        state, at = resume(session, checkpoints)
        best.check_newest()
        workdir = session.workdir
        with RunLog(workdir, cfg.log, cfg.iterations, is_writer(), resumed_at=at.done) as log:
            log.message(start_line(cfg, at))
            if at.done == 0:
                evaluate(session, state.policy, "test", 0, log)
                at.best_accuracy = evaluate(session, state.policy, "validation", 0, log)
            while not is_over(cfg, at):
                profile(at.done)
                iteration = Iteration(session, log, at.done, at.spent)
                state = one_iteration(iteration, state)
                at.spent = iteration.record(state)
                at.done += 1
                checkpoints.raise_failure()
                state = parked(cfg, state)
                if is_due(cfg.eval.every, cfg, at):
                    accuracy = evaluate(session, state.policy, "validation", at.done, log)
                    at.evaluated = at.done
                    if accuracy > at.best_accuracy:
                        at.best_accuracy = accuracy
                        best.save_params(at.done, state.policy.params, {"pass_at_1": accuracy})
                if is_due(cfg.checkpoint.every, cfg, at):
                    checkpoints.save(at.done, state, dataclasses.asdict(at))
            if at.done > 0:
                evaluate(session, state.policy, "test", at.done, log)
            if is_writer():
                log.message(f"report: {build_report(workdir)}")
        barrier("the end")  # a host that ends while others are at work would end them
    return workdir


def start_line(cfg: Config, at: Progress) -> str:
    """Says where a process begins; iterations count from 0."""
    if at.done == 0:
        return f"begins at iteration 0 of {cfg.iterations}"
    return f"resumes at iteration {at.done} of {cfg.iterations}, from checkpoints/{at.done}"


def is_over(cfg: Config, at: Progress) -> bool:
    """Whether all iterations are done, or the budget is used up."""
    return at.done >= cfg.iterations or left(cfg, at.spent).nothing


def is_due(every: int, cfg: Config, at: Progress) -> bool:
    """Whether a job is due that runs after `every` iterations (0: never) and after the last."""
    return is_over(cfg, at) or (every > 0 and at.done % every == 0)


def parked(cfg: Config, state: RunState) -> RunState:
    """The state between updates: with `offload.optimizer`, optimizer and critic are on the host.

    `to_device` brings them back.
    """
    if not cfg.offload.optimizer:
        return state
    policy = state.policy._replace(opt_state=to_host(state.policy.opt_state))
    return state._replace(policy=policy, critic=to_host(state.critic))


def resume(session: Session, checkpoints: Checkpoints) -> tuple[RunState, Progress]:
    """The state and progress of the newest checkpoint, or those before the first iteration.

    A damaged checkpoint is said, and the one before it is used. Raises WorkdirError if all are.
    """
    cfg = session.cfg
    start = session.load_reference()
    policy = fresh_state(start, make_optimizer(cfg.optimizer, 1), session.mesh)
    values = find_method(cfg.method).values
    critic = None
    if values == "critic":
        weights = fresh_critic(session.model, start, cfg.seed, session.mesh)
        critic = fresh_state(weights, make_critic_optimizer(cfg, 1), session.mesh)
    tracker = None
    if values == "tracker":
        tracker = fresh_tracker(cfg, len(session.problems["train"]))
    fresh = RunState(policy, critic, tracker)

    def restored(done: int) -> tuple[RunState, Progress]:
        state, meta = checkpoints.restore(done, fresh)
        return state, progress_of(meta, done, checkpoints)

    state, at = checkpoints.newest(restored) or (fresh, Progress())
    barrier("resume", at.done)
    return parked(cfg, state), at


def progress_of(meta: dict[str, Any], done: int, checkpoints: Checkpoints) -> Progress:
    """The progress that a checkpoint of `done` iterations holds as its meta.

    Raises DamagedError if a part is missing, or it is of another number of iterations.
    """
    folder = checkpoints.folder / str(done)
    try:
        spent = Spent(**meta["spent"])
        at = Progress(
            meta.get("done", done), meta["best_accuracy"], meta.get("evaluated", 0), spent
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{folder}: is damaged (its meta lacks {error})") from error
    if at.done != done:
        raise DamagedError(f"{folder}: is damaged (it was saved as {at.done})")
    return at
