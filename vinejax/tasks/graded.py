"""A task with the grader of a run: rewards of responses and of steps, and the ends of steps."""

import contextlib
import dataclasses
import operator
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config, GraderConfig, RewardConfig
from vinejax.core.text import Tokenizer
from vinejax.core.types import Problem
from vinejax.grading import Grader
from vinejax.runtime.distributed import shared_work
from vinejax.tasks.base import (
    BatchGraded,
    Configured,
    OwnRules,
    StepRewarded,
    StepsInTokens,
    Task,
    WithFailures,
    WithGold,
    WithStyle,
)
from vinejax.tasks.rewards import (
    Items,
    Reward,
    RewardCall,
    RewardFunction,
    TrainerState,
    find_rewards,
    weighted,
)
from vinejax.tasks.steps import step_ends

MIN_WORKERS, MAX_WORKERS = 2, 16  # limits of the default number of grading processes


@dataclasses.dataclass(frozen=True)
class GradingStats:
    """Counts of what a `GradedTask` has graded since it was made.

    For a task without a grader only `seconds` is not 0.
    """

    pairs: int = 0
    timeouts: int = 0
    errors: int = 0
    seconds: float = 0.0  # wall-clock time in the task's own functions

    def minus(self, earlier: "GradingStats") -> "GradingStats":
        """The counts added since `earlier`, a copy of the counts at an earlier time."""
        newer, older = dataclasses.astuple(self), dataclasses.astuple(earlier)
        return GradingStats(*map(operator.sub, newer, older))


def default_workers() -> int:
    """The number of grading processes of a run that does not set this number.

    It is half of the cores that this process may use, within MIN_WORKERS .. MAX_WORKERS. The other
    cores serve the devices.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # some systems lack it
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min(max(cores // 2, MIN_WORKERS), MAX_WORKERS)


def configure(task: Task, cfg: Config) -> None:
    """Gives a `Configured` task the run's settings. Raises ConfigError if they do not suit it."""
    if isinstance(task, Configured):
        task.configure(cfg)


class GradedTask(contextlib.AbstractContextManager["GradedTask"]):
    """A task with its grader: a context manager, usable from several threads, one call at a time.

    The grader starts its processes when a response first needs them. A task that is not
    `BatchGraded` has no such processes. `reward` names the functions whose weighted sum is the
    reward of a response. Without functions the task's own reward counts.

    Raises ConfigError for a task that is both `StepsInTokens` and `StepRewarded`, and wherever
    `find_rewards` raises it.
    """

    def __init__(
        self,
        task: Task,
        cfg: GraderConfig,
        reward: RewardConfig | None = None,
    ):
        if isinstance(task, StepsInTokens) and isinstance(task, StepRewarded):
            message = "`step_rewards` needs texts of steps, and steps of `step_ends` have none"
            raise ConfigError("data.task", message, repr(task.name))
        self.task = task
        self._functions = find_rewards(reward) if reward else []
        self.state = TrainerState()  # the run's progress, for reward functions
        self._grader = None
        needs_task = not self._functions or any(f.function is None for f in self._functions)
        if isinstance(task, BatchGraded) and needs_task:
            style = task.style if isinstance(task, WithStyle) else "math"
            workers = cfg.workers or default_workers()
            self._grader = Grader(
                workers, cfg.timeout_s, mode=cfg.mode, style=style, memory_mb=cfg.memory_mb
            )
        self._has_warned = False
        self._seconds = 0.0
        self._lock = threading.Lock()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the grader's processes; a task that needs them cannot grade afterwards."""
        if self._grader:
            self._grader.close()

    @property
    def stats(self) -> GradingStats:
        if not self._grader:
            return GradingStats(seconds=self._seconds)
        stats = self._grader.stats
        return GradingStats(stats.pairs, stats.timeouts, stats.errors, self._seconds)

    def background(self) -> "BackgroundGrading":
        """A `BackgroundGrading`, which grades responses while the caller samples others."""
        return BackgroundGrading(self)

    def __call__(self, items: Sequence[tuple[Problem, str]]) -> list[float]:
        """The rewards of (problem, response) pairs, in order, graded as one batch; see `grade`."""
        return [reward.total for reward in self.grade(items)]

    def grade(self, items: Items, ids: Sequence[list[int]] | None = None) -> list[Reward]:
        """The rewards of (problem, response) pairs, in order, with their parts. Grades one batch.

        `ids` are the tokens of the responses, for reward functions.

        Raises UserError as `CheckedTask` and `RewardFunction.rewards` do.
        """
        if not items:
            return []
        if not self._functions:
            return [Reward(total) for total in self._task_rewards(items)]
        parts, logged = [], {}
        for function in self._functions:
            call = RewardCall(ids, self.state)
            parts.append(self._part(function, items, call))
            for name, values in call.logged.items():
                logged[f"{function.name}/{name}"] = sum(values) / len(values)
        rewards = weighted(self._functions, parts, logged)
        for (problem, _), *judged in zip(items, *parts, strict=True):
            if all(part is None for part in judged) and not self._has_warned:
                self._has_warned = True
                message = "no reward function judged a response, whose reward is 0"
                print(f"warning: task {self.task.name}, problem {problem.id}: {message}")
        return rewards

    def _part(
        self, function: RewardFunction, items: Items, call: RewardCall
    ) -> Sequence[float | None]:
        if function.function is None:
            return self._task_rewards(items)
        return self._timed(function.rewards, items, self.task.name, self.task.prompt, call)

    def check_functions(self, problem: Problem) -> None:
        """Raises UserError if a reward function requires an argument that the problem lacks."""
        for function in self._functions:
            if function.function is not None:
                function.check(problem, self.task.name, self.task.prompt)

    def _task_rewards(self, items: Items) -> list[float]:
        """The task's own rewards.

        The task reads responses after the tag of a thinking block that the prompt opens; reward
        functions read them as they were sampled.
        """
        opened = [(problem, problem.opened(response)) for problem, response in items]
        if self._grader and isinstance(self.task, BatchGraded):
            return self._timed(self.task.rewards, opened, self._grader)
        return self._timed(lambda: [self.task.reward(*item) for item in opened])

    def answers(self, items: Items) -> list[str | None]:
        """The task's answers of (problem, response) pairs, in order."""
        return [self.task.answer(problem.opened(response)) for problem, response in items]

    def step_ends(
        self, tokenizer: Tokenizer, prompt: list[int], response: list[int], text: str
    ) -> list[int]:
        """The index one past the last token of each of the C steps of a response, [C].

        `text` is the text of the response that was graded. An empty response has no steps.
        """
        if not isinstance(self.task, StepsInTokens):
            return step_ends(tokenizer, prompt, response, self.task.split(text), text)
        return self.task.step_ends(len(response)) if response else []

    @property
    def has_steps(self) -> bool:
        """Whether the task is `StepRewarded`."""
        return isinstance(self.task, StepRewarded)

    def step_rewards(self, problem: Problem, steps: Sequence[str]) -> list[float]:
        """The task's reward of each step of a response. Call it only if `has_steps`."""
        assert isinstance(self.task, StepRewarded)
        return list(self._timed(self.task.step_rewards, problem, steps))

    def failure(self, problem: Problem, response: str) -> dict[str, str] | None:
        """The first test that a response fails, as `WithFailures.failure` returns it.

        None if the task is not `WithFailures`, or if it has no grader.
        """
        if not self._grader or not isinstance(self.task, WithFailures):
            return None
        return self._timed(self.task.failure, problem, problem.opened(response))

    def unreadable(self, problems: Sequence[Problem]) -> dict[str, str | None]:
        """The correct answers, by problem id, that are None or that the grader cannot read.

        The result is empty if the task is not both `BatchGraded` and `WithGold`, or if its own
        reward does not count. For a task with `OwnRules` it has only the answers that are None.
        """
        task = self.task
        if not self._grader or not isinstance(task, WithGold):
            return {}
        golds = {problem.id: task.gold(problem) for problem in problems}
        if isinstance(task, OwnRules):
            return {name: None for name, gold in golds.items() if gold is None}
        # The grader cannot read an empty answer.
        verdicts = self._grader.readable_many([gold or "" for gold in golds.values()])
        pairs = zip(golds.items(), verdicts, strict=True)
        return {name: gold for (name, gold), verdict in pairs if not verdict.correct}

    def _timed(self, function: Callable[..., Any], *arguments: Any) -> Any:
        with self._lock:
            start = time.monotonic()
            try:
                return function(*arguments)
            finally:
                self._seconds += time.monotonic() - start


class BackgroundGrading(contextlib.AbstractContextManager["BackgroundGrading"]):
    """Grades responses on a thread of its own as they end, while the caller samples others.

    It is a context manager. Leaving it waits for the current batch and drops later batches.
    """

    BATCH = 64  # responses: enough for all workers, few enough to finish before the last response

    def __init__(self, graded: GradedTask):
        self._graded = graded
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rewards")
        self._next: list[tuple[int, Problem, str, list[int]]] = []
        self._batches: list[tuple[list[int], Future[list[Reward]]]] = []

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def add(self, i: int, problem: Problem, response: str, ids: list[int]) -> None:
        """Adds response number `i`, whose tokens are `ids`, to the next batch."""
        self._next.append((i, problem, response, ids))
        if len(self._next) >= self.BATCH:
            self._submit()

    def rewards(self) -> dict[int, Reward]:
        """The rewards of the responses of all hosts, by the number of the response.

        Every host must call `rewards` after its last `add`. Raises what grading raised.
        """
        self._submit()
        this_host = {
            i: tuple(reward)
            for numbers, batch in self._batches
            for i, reward in zip(numbers, batch.result(), strict=True)
        }
        return {i: Reward(*reward) for i, reward in shared_work(this_host).items()}

    def _submit(self) -> None:
        if self._next:
            numbers, problems, responses, ids = zip(*self._next, strict=True)
            items = list(zip(problems, responses, strict=True))
            batch = self._executor.submit(self._graded.grade, items, ids)
            self._batches.append((list(numbers), batch))
            self._next = []
