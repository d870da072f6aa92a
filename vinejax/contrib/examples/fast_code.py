"""ACECode: the task `code` with a reward for right programs that grows with their speed.

    r = 1 + K·(1 + clip(log(t_ref / t), -1, 1))    if all tests pass; else the reward of `code`

t is the CPU time of all tests and t_ref that of the row's worked solution (`data.solution`), each
the median of `RUNS` runs in the sandbox of the kernel, which measures it outside the program. A
right program that takes e times as long as the reference earns 1, one as fast 1.25, and one that
takes 1/e of its time 1.5. So every right program counts as correct, and none that is wrong. Where a
row has no worked solution, t_ref is `LEAST_S`.

The runs that are timed are further ones, whose results do not count: a program that fails at
random, and ends sooner where it does, may earn more than its speed is worth.

Source: ACECode, https://arxiv.org/abs/2412.17264, section on the rewarder.

Departs: the paper's reward is a step function, which also tells programs that do not compile from
programs that fail tests; for right ones it grows with t_ref / t.
"""

import functools
import math
import statistics
from collections.abc import Sequence
from typing import Any

from vinejax import grading
from vinejax.contrib.code.sandbox.pool import Outcome
from vinejax.contrib.code.sandbox.sandbox import Sandbox
from vinejax.contrib.code.settings import CodeConfig
from vinejax.contrib.code.task import CACHED, Code
from vinejax.contrib.code.task import make as make_code
from vinejax.contrib.code.verdict import run_tests
from vinejax.core.errors import ConfigError, DataError
from vinejax.core.settings import Config, DataConfig
from vinejax.core.types import Problem

K = 0.25  # reward per factor e of time
RUNS = 3
LEAST_S = 0.01  # less CPU time counts as this: a program that does nothing takes 3 to 5 ms


def speed_reward(seconds: float, reference: float) -> float:
    """The reward of a right program; both times are in seconds."""
    ratio = max(reference, LEAST_S) / max(seconds, LEAST_S)
    return 1.0 + K * (1.0 + min(max(math.log(ratio), -1.0), 1.0))


class Stopwatch(Sandbox):
    """Another sandbox, with a sum of the CPU seconds of what it ran for this object."""

    def __init__(self, sandbox: Sandbox):
        self._sandbox, self.seconds = sandbox, 0.0

    def run(
        self, source: str, stdin: str = "", calls: Sequence[tuple[str, Any]] | None = None
    ) -> Outcome:
        outcome = self._sandbox.run(source, stdin, calls)
        self.seconds += outcome.seconds or 0.0
        return outcome


class FastCode(Code):
    """The task of the module's docstring; `tasks/base.py` documents the methods."""

    name = "fast_code"

    def __init__(self, data: DataConfig):
        super().__init__(data)
        self._seconds = functools.lru_cache(CACHED)(self._measured)

    def configure(self, cfg: Config) -> None:
        if (sandbox := CodeConfig.of(cfg).sandbox) != "kernel":
            message = f"must be 'kernel' for task {self.name}: no other sandbox measures CPU time"
            raise ConfigError("code.sandbox", message, repr(sandbox))
        super().configure(cfg)

    def rewards(self, items: Sequence[tuple[Problem, str]], grader: grading.Grader) -> list[float]:
        """The rewards of pairs (problem, response). Only programs that pass are timed."""
        rewards = super().rewards(items, grader)
        right = [i for i, reward in enumerate(rewards) if reward == 1.0]
        timed = self._sandbox.get().run_all(self._speed_reward, [items[i] for i in right])
        for i, reward in zip(right, timed, strict=True):
            rewards[i] = reward
        return rewards

    def _speed_reward(self, item: tuple[Problem, str]) -> float:
        problem, response = item
        try:
            reference = self.program(problem, self.solution(problem)) or ""
        except DataError:  # the row has none
            reference = ""
        seconds = self._seconds(problem.answer, self.program(problem, response) or "")
        return speed_reward(seconds, self._seconds(problem.answer, reference))

    def _measured(self, answer: str, code: str) -> float:
        """The CPU seconds of a program on the tests in `answer`, the median of `RUNS` runs."""
        found = []
        for _ in range(RUNS):
            stopwatch = Stopwatch(self._sandbox.get())
            run_tests(answer, code, stopwatch, all_of_them=False)
            found.append(stopwatch.seconds)
        return statistics.median(found)


def make(data: DataConfig) -> FastCode:
    make_code(data)  # raises the errors of the task `code`
    if not data.solution:
        message = "name the column with worked solutions, whose time is the reference"
        raise ConfigError("data.solution", message, "''")
    return FastCode(data)
