"""The rewards of a task's responses, a batch at a time, and the grader behind them."""

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from vinejax.errors import UserError
from vinejax.grading import Grader
from vinejax.settings import GraderConfig
from vinejax.tasks.base import BatchGraded, StepRewarded, Task, WithGold
from vinejax.types import Problem


@dataclasses.dataclass(frozen=True)
class GradingStats:
    """What has been graded so far; pairs, timeouts and errors are the grader's, 0 without one."""

    pairs: int = 0
    timeouts: int = 0
    errors: int = 0
    seconds: float = 0.0

    def minus(self, earlier: "GradingStats") -> "GradingStats":
        """What was added since `earlier`."""
        now, then = dataclasses.astuple(self), dataclasses.astuple(earlier)
        return GradingStats(*(a - b for a, b in zip(now, then, strict=True)))


class GradedTask:
    """A task with its grader: a context manager, usable from several threads, one call at a time.

    Workers start when a task that is `BatchGraded` has a pair that needs one; for other tasks
    there never are any.
    """

    def __init__(self, task: Task, cfg: GraderConfig):
        self.task = task
        self._grader = _grader(task, cfg) if isinstance(task, BatchGraded) else None
        self._seconds = 0.0
        self._lock = threading.Lock()

    def __enter__(self) -> "GradedTask":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the grader's workers; a task that needs them gives no more rewards."""
        if self._grader:
            self._grader.close()

    @property
    def stats(self) -> GradingStats:
        if not self._grader:
            return GradingStats(seconds=self._seconds)
        of = self._grader.stats
        return GradingStats(of.pairs, of.timeouts, of.errors, self._seconds)

    def __call__(self, items: Sequence[tuple[Problem, str]]) -> list[float]:
        """The rewards of the outcomes of (problem, response), in order, graded as one batch.

        Raises UserError, naming the task, when it gives another number of rewards than there are
        items, or, naming the problem too, when one is not finite.
        """
        if not items:
            return []
        found = self._timed(self._outcomes, items)
        if len(found) != len(items):
            message = f"`rewards` gave {len(found)} rewards for {len(items)} responses"
            raise UserError(f"task {self.task.name}: {message}")
        problems = (problem for problem, _ in items)
        return [self._finite(r, p, "reward") for r, p in zip(found, problems, strict=True)]

    def _outcomes(self, items: Sequence[tuple[Problem, str]]) -> Sequence[float]:
        if self._grader and isinstance(self.task, BatchGraded):
            return self.task.rewards(items, self._grader)
        return [self.task.reward(problem, response) for problem, response in items]

    @property
    def has_steps(self) -> bool:
        """Whether the task rewards steps, too."""
        return isinstance(self.task, StepRewarded)

    def of_steps(self, problem: Problem, steps: Sequence[str]) -> list[float]:
        """The task's own rewards of a response's steps, one each; only if it `has_steps`.

        Raises UserError, naming task and problem, for another number of them or one that is not
        finite.
        """
        assert isinstance(self.task, StepRewarded)
        found = self._timed(self.task.step_rewards, problem, steps)
        if len(found) != len(steps):
            message = f"`step_rewards` gave {len(found)} rewards for {len(steps)} steps"
            raise UserError(f"task {self.task.name}, problem {problem.id}: {message}")
        return [self._finite(reward, problem, "step reward") for reward in found]

    def unreadable(self, problems: Sequence[Problem]) -> dict[str, str | None]:
        """Id and gold of those whose gold the grader cannot read, or that have none.

        Empty for a task without `rewards` or `gold`.
        """
        task = self.task
        if not self._grader or not isinstance(task, WithGold):
            return {}
        golds = {problem.id: task.gold(problem) for problem in problems}
        # The grader finds nothing to read in an empty gold.
        verdicts = self._grader.readable_many([gold or "" for gold in golds.values()])
        found = zip(golds.items(), verdicts, strict=True)
        return {name: gold for (name, gold), verdict in found if not verdict.correct}

    def _timed(self, function: Callable[..., Any], *arguments: Any) -> Any:
        with self._lock:
            start = time.monotonic()
            try:
                return function(*arguments)
            finally:
                self._seconds += time.monotonic() - start

    def _finite(self, reward: float, problem: Problem, what: str) -> float:
        reward = float(reward)
        if not math.isfinite(reward):
            place = f"task {self.task.name}, problem {problem.id}"
            raise UserError(f"{place}: a {what} is {reward}; it must be a finite number")
        return reward


class BackgroundGrading:
    """GradedTask of responses as they come, on a thread of its own: the caller goes on sampling.

    A context manager; leaving it waits for the batch that is being graded and drops the others.
    """

    BATCH = 64  # responses: enough for all workers, few enough to be done before the last ones come

    def __init__(self, rewards: GradedTask):
        self._rewards = rewards
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rewards")
        self._next: list[tuple[int, Problem, str]] = []
        self._batches: list[tuple[list[int], Future[list[float]]]] = []

    def __enter__(self) -> "BackgroundGrading":
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def add(self, i: int, problem: Problem, response: str) -> None:
        """Have response number `i` graded."""
        self._next.append((i, problem, response))
        if len(self._next) >= self.BATCH:
            self._submit()

    def results(self) -> dict[int, float]:
        """The reward of every response by its number; raises what grading raised."""
        self._submit()
        return {
            i: reward
            for numbers, batch in self._batches
            for i, reward in zip(numbers, batch.result(), strict=True)
        }

    def _submit(self) -> None:
        if self._next:
            items = [(problem, response) for _, problem, response in self._next]
            batch = self._executor.submit(self._rewards, items)
            self._batches.append(([i for i, *_ in self._next], batch))
            self._next = []


def _grader(task: BatchGraded, cfg: GraderConfig) -> Grader:
    return Grader(
        cfg.workers,
        cfg.timeout_s,
        mode=cfg.mode,  # pyright: ignore[reportArgumentType]
        style=getattr(task, "style", "math"),
        memory_mb=cfg.memory_mb,
    )
