"""The loop of a run: its iterations, evaluations and checkpoints, in order.

`TrainingRun.run` is the loop. The algorithm is in the iteration that it calls, which for VinePPO is
`policy_gradient` in methods/base.py.
"""

import dataclasses
import math
import os
from collections.abc import Callable

import jax
from etils import epath

from vinejax.core.errors import DivergedError
from vinejax.core.settings import Config
from vinejax.core.types import RunState
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.update import fresh_state
from vinejax.methods.compose import fresh_run
from vinejax.runtime.checkpoint import Checkpoints, DamagedError, abstract
from vinejax.runtime.compiles import Compiles, compiles
from vinejax.runtime.distributed import barrier, is_writer, process_place
from vinejax.runtime.log import RunLog
from vinejax.runtime.offload import to_host
from vinejax.runtime.profile import profiler
from vinejax.runtime.stopping import Stopped, deferred
from vinejax.runtime.watchdog import Watchdog
from vinejax.session.budget import RunTotals, groups_left
from vinejax.session.iteration import Iteration
from vinejax.session.session import Session
from vinejax.tasks.base import Split
from vinejax.training.announce import end_lines, head_line, programs_line, start_line
from vinejax.training.evaluate import evaluate
from vinejax.training.health import Health
from vinejax.training.observer import Observer, observer_class
from vinejax.training.startup import fingerprint, open_session


@dataclasses.dataclass
class Progress:
    """The progress of a run, which a checkpoint stores together with the state."""

    done: int = 0  # finished iterations
    best_accuracy: float = -math.inf  # best accuracy on the validation split
    evaluated: int = 0  # finished iterations at the last evaluation on validation
    judged_by: str = ""  # what `best_accuracy` was measured on: see `judged_on`
    tested_by: str = ""  # the same of the test after `done` iterations; "": none yet
    spent: RunTotals = RunTotals()


def train(cfg: Config, path: str | os.PathLike) -> epath.Path:
    """Trains until `cfg.iterations` iterations are done or the budget is used up.

    Training goes on from the newest checkpoint, if there is one. Returns the workdir, which then
    has checkpoints, metrics, episodes and `report.html`. After a request to stop, saves the last
    finished iteration and raises Stopped.
    """
    try:
        return _train(cfg, path)
    except Stopped:
        barrier("stopped")  # a host that exits while others still save would end the others
        raise


def _train(cfg: Config, path: str | os.PathLike) -> epath.Path:
    compiled = compiles()
    with (
        open_session(cfg, path, trains=True) as session,
        Checkpoints(session.workdir / "checkpoints", cfg.checkpoint.keep) as checkpoints,
        Checkpoints(session.workdir / "best", keep=1) as best,
        profiler(cfg.profile, session.workdir / "profile") as profile,
    ):
        state, progress = resume(session, checkpoints)
        session.release_start()
        progress.best_accuracy = accuracy_to_exceed(best, progress)
        workdir = session.workdir
        process, processes = process_place()
        with (
            RunLog(workdir, cfg.log, cfg.iterations, is_writer(), progress.done) as log,
            Watchdog(workdir, cfg.distributed.silence_s, process, processes),
            deferred(),
        ):
            log.message(head_line(session, state.policy.params))
            log.message(start_line(cfg, progress.done, progress.spent))
            with observer_class()(
                workdir,
                total=cfg.iterations,
                done=progress.done,
                say=log.message,
                is_writer=is_writer(),
            ) as page:
                training = TrainingRun(
                    session, log, checkpoints, best, page, state, progress, compiled
                )
                del state  # else a state in the host's memory would stay there during the run
                try:
                    training.run(profile)
                except Stopped as stop:
                    stop.next_start = training.keep()
                    raise
                except DivergedError as error:
                    raise DivergedError(f"{error}; {training.remedy()}") from None
                report = page.finish()
            if is_writer():
                if report:
                    log.message(f"report: {report}")
                for line in end_lines(workdir):
                    log.message(line)
        barrier("the end")  # a host that exits while others still work would end the others
    return workdir


@dataclasses.dataclass(eq=False)
class TrainingRun:
    """A run in this process, which calls iterations, evaluations and checkpoints in order."""

    session: Session
    log: RunLog
    checkpoints: Checkpoints
    best: Checkpoints
    page: Observer
    state: RunState
    progress: Progress
    compiled: Compiles  # programs of this process when the run began; an earlier run compiled them
    spare: RunState | None = None  # a copy of the state while an iteration consumes it
    is_first: bool = True  # no iteration of this process has ended

    def __post_init__(self):
        self.health = Health(self.session.workdir, self.log)

    def run(self, profile: Callable[[int], None]) -> None:
        """Trains. Before each iteration, calls `profile` with the iteration's number."""
        cfg, progress = self.session.cfg, self.progress
        self.page.renew()
        self._forget_stale_best()
        if progress.done == 0:
            self._evaluate("test")
            progress.best_accuracy = self._evaluate("validation")
        self._finish_iteration()  # a resumed run may have been stopped before it did
        while not is_over(cfg, progress):
            self.page.renew()
            profile(progress.done)
            self._train_iteration()
            self._finish_iteration()
        if progress.done > 0:
            self._test_result()
        self._wait()

    def _train_iteration(self) -> None:
        cfg, progress = self.session.cfg, self.progress
        method = self.session.method
        iteration = Iteration(self.session, self.log, progress.done, progress.spent)
        if not self.checkpoints.has(progress.done) and progress.done > 0:
            self.spare = host_copy(self.state)
        # `policy_gradient` in methods/base.py, unless the method's METHOD names another function.
        state = method.iteration(method, iteration, self.state)
        progress.spent = iteration.record(int(state.policy.step))
        progress.done += 1
        progress.tested_by = ""
        self.page.done = progress.done
        self.state, self.spare = offloaded(cfg, state), None
        if self.is_first:
            self.log.message(programs_line(compiles().since(self.compiled)))
        self.is_first = False
        self.checkpoints.raise_failure()
        self.health.look(iteration)

    def _finish_iteration(self) -> None:
        """Evaluates on validation, and saves a checkpoint, if these are due.

        If a run stops before a due evaluation or save, its next start does it.
        """
        cfg, progress = self.session.cfg, self.progress
        if progress.done == 0:
            return
        if is_due(cfg.eval.every, cfg, progress) and progress.evaluated < progress.done:
            accuracy = self._evaluate("validation")
            progress.evaluated = progress.done
            if accuracy > progress.best_accuracy:
                progress.best_accuracy = accuracy
                self.best.save_params(
                    progress.done, self.state.policy.params, {"pass_at_1": accuracy}
                )
            if self.checkpoints.has(progress.done):  # of a process that stopped before this result
                self.best.wait()  # as in `_save`
                self.checkpoints.renew_meta(progress.done, dataclasses.asdict(progress))
        if is_due(cfg.checkpoint.every, cfg, progress):
            self._save(self.state)

    def _test_result(self) -> None:
        """Evaluates the last policy on test, unless its checkpoint says that this was done."""
        progress, settings = self.progress, judged_on(self.session, "test")
        if progress.tested_by == settings:
            return
        self._evaluate("test")
        progress.tested_by = settings
        self._wait()
        # Only this entry: a start with other settings leaves the run's best accuracy as it is.
        meta = self.checkpoints.meta(progress.done) | {"tested_by": settings}
        self.checkpoints.renew_meta(progress.done, meta)

    def _forget_stale_best(self) -> None:
        """Forgets `best_accuracy` if its settings of evaluations or its problems were others."""
        progress, settings = self.progress, judged_on(self.session, "validation")
        if progress.done > 0 and progress.judged_by != settings:
            progress.best_accuracy = -math.inf
            others = "eval.samples, temperature, top_p or problems, or the validation problems,"
            self.log.message(
                f"{others} have changed since the accuracies so far: the best policy is chosen anew"
            )
        progress.judged_by = settings

    def _evaluate(self, split: Split) -> float:
        return evaluate(self.session, self.state.policy, split, self.progress.done, self.log)

    def _save(self, state: RunState) -> None:
        # The checkpoint counts the evaluation as done. If the run were killed before `best/` is
        # written, no later start would write it.
        self.best.wait()
        self.checkpoints.save(self.progress.done, state, dataclasses.asdict(self.progress))

    def _wait(self) -> None:
        """Waits for saves in progress; meanwhile only a second Ctrl-C ends the run."""
        self.checkpoints.wait()
        self.best.wait()

    def keep(self) -> str:
        """Saves the last finished iteration; returns a phrase on where the next start begins."""
        cfg, progress, done = self.session.cfg, self.progress, self.progress.done
        if done == 0:
            return "no iteration was finished; the same command begins again"
        self._save(self.spare or self.state)
        self._wait()
        lacks_validation = is_over(cfg, progress) and progress.evaluated < done
        rest = "does the last validation" if lacks_validation else "resumes there"
        return f"checkpoints/{done} is saved; the same command {rest}"

    def remedy(self) -> str:
        """A phrase that says what to do about weights that have diverged."""
        optimizer = self.session.cfg.optimizer
        rate = f"lower optimizer.learning_rate, which is {optimizer.learning_rate:g}"
        if self.best.latest() is None:
            return rate
        return f"{rate}; model.path={self.session.workdir} starts from the best policy until here"


def accuracy_to_exceed(best: Checkpoints, progress: Progress) -> float:
    """The accuracy above which a policy replaces the newest in `best`; any replaces a damaged one.

    A process that is stopped within a validation saves the iteration without it. The next start
    validates it, and may write it to `best`, and only then records the result in the checkpoint.
    """
    if not best.check_newest():
        return -math.inf
    if best.latest() != progress.done:  # counted in `best_accuracy`, or to be done again
        return progress.best_accuracy
    return max(progress.best_accuracy, best.meta(progress.done)["pass_at_1"])


def judged_on(session: Session, split: Split) -> str:
    """The settings and the problems on which accuracies on a split depend, as text."""
    cfg = session.cfg.eval
    problems = session.problems[split][: cfg.problems]
    return f"{dataclasses.replace(cfg, every=0)!r} on {fingerprint(problems)}"


def is_over(cfg: Config, progress: Progress) -> bool:
    """Whether all iterations are done, or the budget is used up."""
    return progress.done >= cfg.iterations or groups_left(cfg, progress.spent) < 1


def is_due(every: int, cfg: Config, progress: Progress) -> bool:
    """Whether a job is due, such as an evaluation or a save.

    A job is due at the end of the run and, unless `every` is 0, after each `every` iterations.
    """
    return is_over(cfg, progress) or (every > 0 and progress.done % every == 0)


def offloaded(cfg: Config, state: RunState) -> RunState:
    """The state between iterations. `offload.optimizer` moves `opt_state` and `kept` to the host.

    `to_device` moves these arrays back.
    """
    if not cfg.offload.optimizer:
        return state
    policy = state.policy._replace(opt_state=to_host(state.policy.opt_state))
    return state._replace(policy=policy, kept=to_host(state.kept))


def host_copy(state: RunState) -> RunState:
    """A copy of `state` in host memory, which remains when an iteration has consumed `state`."""
    return state._replace(policy=to_host(state.policy), kept=to_host(state.kept))


def resume(session: Session, checkpoints: Checkpoints) -> tuple[RunState, Progress]:
    """The state and progress of the newest checkpoint, or those before the first iteration.

    A damaged checkpoint is reported, and the checkpoint before it is used. Raises WorkdirError if
    all checkpoints are damaged.
    """
    cfg, optimizer = session.cfg, make_optimizer(session.cfg.optimizer, 1)
    like = fresh_run(session, fresh_state(session.fresh_params(), optimizer, session.mesh))
    if checkpoints.latest() is not None:
        like = jax.tree.map(abstract, like)  # a fresh state beside the restored one takes memory

    def restored(done: int) -> tuple[RunState, Progress]:
        state, meta = checkpoints.restore(done, like)
        folder = checkpoints.folder / str(done)
        try:
            spent = RunTotals(**meta["spent"])
            progress = Progress(meta["done"], meta["best_accuracy"], meta["evaluated"], spent=spent)
            progress.judged_by = meta.get("judged_by", "")
            progress.tested_by = meta.get("tested_by", "")
        except (KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{folder}: is damaged (its meta lacks {error})") from error
        if progress.done != done:
            raise DamagedError(f"{folder}: is damaged (it was saved as {progress.done})")
        return state, progress

    state, progress = checkpoints.newest(restored) or (like, Progress())
    barrier("resume", progress.done)
    return offloaded(cfg, state), progress
