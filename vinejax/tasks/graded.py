"""A task with the grader of the run: rewards of responses and of steps, and where steps end."""

import dataclasses
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from vinejax.core.errors import ConfigError, UserError
from vinejax.core.plugins import failure, source_of
from vinejax.core.settings import GraderConfig, RewardConfig
from vinejax.core.text import Tokenizer
from vinejax.core.types import Problem
from vinejax.grading import Grader
from vinejax.runtime.distributed import shared_work
from vinejax.tasks.base import BatchGraded, StepRewarded, StepsInTokens, Task, WithGold, WithStyle
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

    def plus(self, more: "GradingStats") -> "GradingStats":
        """The sums of these counts and `more`."""
        sums = (
            a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(more), strict=True)
        )
        return GradingStats(*sums)

    def minus(self, earlier: "GradingStats") -> "GradingStats":
        """The counts since `earlier` was taken."""
        now, then = dataclasses.astuple(self), dataclasses.astuple(earlier)
        return GradingStats(*(a - b for a, b in zip(now, then, strict=True)))


def default_workers() -> int:
    """The number of grading processes of a run that sets none.

    It is half of the cores that this process may use, as the others serve the devices, kept within
    MIN_WORKERS .. MAX_WORKERS.
    """
    usable = getattr(os, "sched_getaffinity", None)  # not on every system
    cores = len(usable(0)) if usable else os.cpu_count() or 1
    return min(max(cores // 2, MIN_WORKERS), MAX_WORKERS)


class GradedTask:
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
        if isinstance(task, BatchGraded) and self._asks_task:
            style = task.style if isinstance(task, WithStyle) else "math"
            workers = cfg.workers or default_workers()
            self._grader = Grader(
                workers, cfg.timeout_s, mode=cfg.mode, style=style, memory_mb=cfg.memory_mb
            )
        self._said_unjudged = False
        self._seconds = 0.0
        self._lock = threading.Lock()

    def __enter__(self) -> "GradedTask":
        return self

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

        Raises UserError, naming the task or the reward function, if it fails or gives another
        number of rewards than there are items, or, naming the problem too, if a reward is no finite
        number.
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
            if all(part is None for part in judged):
                self._say_unjudged(problem)
        return rewards

    @property
    def _asks_task(self) -> bool:
        """Whether the task's own reward counts."""
        return not self._functions or any(f.function is None for f in self._functions)

    def _part(self, function: RewardFunction, items: Items, call: Call) -> Sequence[float | None]:
        if function.function is None:
            return self._own(items)
        rewards = self._timed(function.rewards, items, self.task.name, self.task.prompt, call)
        problems = (problem for problem, _ in items)
        what = f"reward of {function.path}"
        pairs = zip(rewards, problems, strict=True)
        return [None if x is None else self._finite(x, p, what) for x, p in pairs]

    def _say_unjudged(self, problem: Problem) -> None:
        """Prints a line for the first response that every reward function left unjudged."""
        if not self._said_unjudged:
            rule = "no reward function judged a response, whose reward is 0"
            print(f"warning: task {self.task.name}, problem {problem.id}: {rule}")
        self._said_unjudged = True

    def check_functions(self, problem: Problem) -> None:
        """Raises UserError for a reward function with a parameter that a problem cannot give."""
        for function in self._functions:
            if function.function is not None:
                function.check(problem, self.task.name, self.task.prompt)

    def _own(self, items: Items) -> list[float]:
        rewards = self._timed(self._outcomes, items)
        if len(rewards) != len(items):
            message = f"`rewards` gave {len(rewards)} rewards for {len(items)} responses"
            raise UserError(f"task {self.task.name}: {message}")
        problems = (problem for problem, _ in items)
        return [self._finite(r, p, "reward") for r, p in zip(rewards, problems, strict=True)]

    def _outcomes(self, items: Items) -> Sequence[Any]:
        if self._grader and isinstance(self.task, BatchGraded):
            return self._asked(self.task.rewards, items, self._grader)
        return [self._asked(self.task.reward, *item) for item in items]

    def _asked(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function of the task; an error in a user's task is a UserError with its line."""
        try:
            return function(*arguments)
        except UserError:
            raise
        except Exception as error:
            if type(self.task).__module__.startswith("vinejax."):
                raise  # a bug of ours, which keeps its traceback
            where, what = f"task {self.task.name}", ""
            if isinstance(arguments[0], Problem):
                where += f", problem {arguments[0].id}"
                what = f" for the response {arguments[1]!r:.200}"
            reason = failure(error, source_of(type(self.task).__module__))
            raise UserError(f"{where}: `{function.__name__}` failed{what}: {reason}") from error

    def step_ends(
        self, tokenizer: Tokenizer, prompt: list[int], response: list[int], text: str
    ) -> list[int]:
        """[C] response token index one past each step; [] for an empty response.

        `text` is the response as graded. Raises UserError if the task's step ends are not as
        `StepsInTokens` requires.
        """
        if not isinstance(self.task, StepsInTokens):
            return step_ends(tokenizer, prompt, response, self._boundaries(text), text)
        if not response:
            return []
        ends = list(self.task.step_ends(len(response)))
        if ends != sorted(set(ends)) or ends[:1] < [1] or ends[-1] != len(response):
            rule = f"must rise from 1 or more to {len(response)}, the number of tokens"
            raise UserError(f"task {self.task.name}: `step_ends` gave {ends}, which {rule}")
        return ends

    def _boundaries(self, text: str) -> list[int]:
        """The step boundaries by the task's `split`; UserError if they lose a character."""
        boundaries = list(self._asked(self.task.split, text))
        is_rising = boundaries == sorted(boundaries)
        if boundaries[:1] != [0] or boundaries[-1] != len(text) or not is_rising:
            rule = f"must rise from 0 to {len(text)}, the length of the text"
            message = f"`split` gave {boundaries!r:.200}, which {rule}"
            raise UserError(f"task {self.task.name}: {message}")
        return boundaries

    @property
    def has_steps(self) -> bool:
        """Whether the task is `StepRewarded`."""
        return isinstance(self.task, StepRewarded)

    def step_rewards(self, problem: Problem, steps: Sequence[str]) -> list[float]:
        """The task's reward of each step of a response. Call it only if `has_steps`.

        Raises UserError, naming task and problem, if there is another number of rewards than steps
        or a reward is not finite.
        """
        assert isinstance(self.task, StepRewarded)
        rewards = self._timed(self._asked, self.task.step_rewards, problem, steps)
        if len(rewards) != len(steps):
            message = f"`step_rewards` gave {len(rewards)} rewards for {len(steps)} steps"
            raise UserError(f"task {self.task.name}, problem {problem.id}: {message}")
        return [self._finite(reward, problem, "step reward") for reward in rewards]

    def unreadable(self, problems: Sequence[Problem]) -> dict[str, str | None]:
        """The correct answers, by problem id, that are None or that the grader cannot read.

        Empty for a task that is not both `BatchGraded` and `WithGold`, or whose own reward does not
        count.
        """
        task = self.task
        if not self._grader or not isinstance(task, WithGold):
            return {}
        golds = {problem.id: task.gold(problem) for problem in problems}
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

    def _finite(self, reward: Any, problem: Problem, what: str) -> float:
        try:
            number = float(reward)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            place = f"task {self.task.name}, problem {problem.id}"
            raise UserError(f"{place}: a {what} is {reward!r}; it must be a finite number")
        return number


class BackgroundGrading:
    """Grades responses on a thread of its own as they come, while the caller goes on sampling.

    A context manager; leaving it waits for the batch that is being graded and drops the others.
    """

    BATCH = 64  # responses: enough for all workers, few enough to finish before the last come

    def __init__(self, graded: GradedTask):
        self._graded = graded
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rewards")
        self._next: list[tuple[int, Problem, str, list[int]]] = []
        self._batches: list[tuple[list[int], Future[list[Reward]]]] = []

    def __enter__(self) -> "BackgroundGrading":
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def add(self, i: int, problem: Problem, response: str, ids: list[int]) -> None:
        """Hands over response number `i` with its tokens, to be graded in a batch."""
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
