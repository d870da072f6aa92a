"""A task with the grader of the run: rewards of responses and of steps, and where steps end."""

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
    Call,
    Items,
    Reward,
    RewardFunction,
    TrainerState,
    find_rewards,
    weighted,
)
from vinejax.tasks.steps import step_ends

MIN_WORKERS, MAX_WORKERS = 2, 16  # grading processes, where the number of cores decides


@dataclasses.dataclass(frozen=True)
class GradingStats:
    """Counts of grading since the start; without a grader all but `seconds` stay 0."""

    pairs: int = 0
    timeouts: int = 0
    errors: int = 0
    seconds: float = 0.0  # wall-clock time in the task's own functions

    def minus(self, earlier: "GradingStats") -> "GradingStats":
        """The counts since `earlier` was taken."""
        now, then = dataclasses.astuple(self), dataclasses.astuple(earlier)
        return GradingStats(*map(operator.sub, now, then))


def default_workers() -> int:
    """The number of grading processes of a run that sets none.

    It is half of the cores that this process may use, as the others serve the devices, kept within
    MIN_WORKERS .. MAX_WORKERS.
    """
    usable = getattr(os, "sched_getaffinity", None)  # not on every system
    cores = len(usable(0)) if usable else os.cpu_count() or 1
    return min(max(cores // 2, MIN_WORKERS), MAX_WORKERS)


def configure(task: Task, cfg: Config) -> None:
    """Gives a task its settings of accessories. Raises ConfigError if they do not suit it."""
    if isinstance(task, Configured):
        task.configure(cfg)


class GradedTask(contextlib.AbstractContextManager["GradedTask"]):
    """A task with its grader: a context manager, usable from several threads, one call at a time.

    The grader's processes start with the first pair that needs one; a task that is not
    `BatchGraded` never has any. `reward` names the functions whose weighted sum is the reward of a
    response; without any the task's own counts.

    Raises ConfigError for a task that is both `StepsInTokens` and `StepRewarded`, and as
    `find_rewards` does.
    """

    def __init__(
        self,
        task: Task,
        cfg: GraderConfig,
        reward: RewardConfig | None = None,
    ):
        if isinstance(task, StepsInTokens) and isinstance(task, StepRewarded):
            rule = "`step_rewards` judges the texts of steps, and `step_ends` gives them none"
            raise ConfigError("data.task", rule, repr(task.name))
        self.task = task
        self._functions = find_rewards(reward) if reward else []
        self.state = TrainerState()  # what reward functions learn of the run
        self._grader = None
        is_asked = not self._functions or any(f.function is None for f in self._functions)
        if isinstance(task, BatchGraded) and is_asked:
            style = task.style if isinstance(task, WithStyle) else "math"
            workers = cfg.workers or default_workers()
            self._grader = Grader(
                workers, cfg.timeout_s, mode=cfg.mode, style=style, memory_mb=cfg.memory_mb
            )
        self._said_unjudged = False
        self._seconds = 0.0
        self._lock = threading.Lock()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the grader's processes; a task that needs them can give no rewards afterwards."""
        if self._grader:
            self._grader.close()

    @property
    def stats(self) -> GradingStats:
        if not self._grader:
            return GradingStats(seconds=self._seconds)
        stats = self._grader.stats
        return GradingStats(stats.pairs, stats.timeouts, stats.errors, self._seconds)

    def background(self) -> "BackgroundGrading":
        """A grading of responses as they come, while the caller goes on sampling."""
        return BackgroundGrading(self)

    def __call__(self, items: Sequence[tuple[Problem, str]]) -> list[float]:
        """The rewards of (problem, response), in order, graded as one batch; see `grade`."""
        return [reward.total for reward in self.grade(items)]

    def grade(self, items: Items, ids: Sequence[list[int]] | None = None) -> list[Reward]:
        """The rewards of (problem, response) with their parts, in order, graded as one batch.

        `ids` are the tokens of the responses, for reward functions.

        Raises UserError as `CheckedTask` and `RewardFunction.rewards` do.
        """
        if not items:
            return []
        if not self._functions:
            return [Reward(total) for total in self._own(items)]
        parts, logged = [], {}
        for function in self._functions:
            call = Call(ids, self.state)
            parts.append(self._part(function, items, call))
            for name, values in call.logged.items():
                logged[f"{function.name}/{name}"] = sum(values) / len(values)
        rewards = weighted(self._functions, parts, logged)
        for (problem, _), *judged in zip(items, *parts, strict=True):
            if all(part is None for part in judged) and not self._said_unjudged:
                self._said_unjudged = True
                rule = "no reward function judged a response, whose reward is 0"
                print(f"warning: task {self.task.name}, problem {problem.id}: {rule}")
        return rewards

    def _part(self, function: RewardFunction, items: Items, call: Call) -> Sequence[float | None]:
        if function.function is None:
            return self._own(items)
        return self._timed(function.rewards, items, self.task.name, self.task.prompt, call)

    def check_functions(self, problem: Problem) -> None:
        """Raises UserError for a reward function with a parameter that a problem cannot give."""
        for function in self._functions:
            if function.function is not None:
                function.check(problem, self.task.name, self.task.prompt)

    def _own(self, items: Items) -> list[float]:
        if self._grader and isinstance(self.task, BatchGraded):
            return self._timed(self.task.rewards, items, self._grader)
        return self._timed(lambda: [self.task.reward(*item) for item in items])

    def step_ends(
        self, tokenizer: Tokenizer, prompt: list[int], response: list[int], text: str
    ) -> list[int]:
        """[C] response token index one past each step; [] for an empty response.

        `text` is the response as graded.
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
        """The first test that a response fails, if the task can say it and its reward counts."""
        if not self._grader or not isinstance(self.task, WithFailures):
            return None
        return self._timed(self.task.failure, problem, response)

    def unreadable(self, problems: Sequence[Problem]) -> dict[str, str | None]:
        """The correct answers, by problem id, that are None or that the grader cannot read.

        Empty for a task that is not both `BatchGraded` and `WithGold`, or whose own reward does not
        count. The grader reads no answer of a task that has `OwnRules`.
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
    """Grades responses on a thread of its own as they come, while the caller goes on sampling.

    A context manager; leaving it waits for the batch that is being graded and drops the others.
    """

    BATCH = 64  # responses: enough for all workers, few enough to finish before the last come

    def __init__(self, graded: GradedTask):
        self._graded = graded
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rewards")
        self._next: list[tuple[int, Problem, str, list[int]]] = []
        self._batches: list[tuple[list[int], Future[list[Reward]]]] = []

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def add(self, i: int, problem: Problem, response: str, ids: list[int]) -> None:
        """Hands over response number `i` with its tokens, to be graded."""
        self._next.append((i, problem, response, ids))
        if len(self._next) >= self.BATCH:
            self._submit()

    def rewards(self) -> dict[int, Reward]:
        """The rewards of the responses of all hosts, by the number of the response.

        Every host calls it after its last `add`. Raises what grading raised.
        """
        self._submit()
        mine = {
            i: tuple(reward)
            for numbers, batch in self._batches
            for i, reward in zip(numbers, batch.result(), strict=True)
        }
        return {i: Reward(*reward) for i, reward in shared_work(mine).items()}

    def _submit(self) -> None:
        if self._next:
            numbers, problems, responses, ids = zip(*self._next, strict=True)
            items = list(zip(problems, responses, strict=True))
            batch = self._executor.submit(self._graded.grade, items, ids)
            self._batches.append((list(numbers), batch))
            self._next = []
