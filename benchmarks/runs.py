"""Runs of a workload: how alike two of them are, and how long each takes."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from workload import Run, Workload

from vinejax.runtime.compiles import num_compiles

SHARE_ALIKE = 0.99  # of the branches: rounding can turn a draw at a boundary
LOGPROB_TOLERANCE = 1e-4


class Disagreement(Exception):
    """Two contenders wrote different things where they must not."""


class Likeness(NamedTuple):
    """How alike the continuations of two runs of the same work are."""

    share: float  # of the branches that have the same tokens
    has_same_lengths: bool
    gap: float | None  # largest difference of log-probabilities up to a branch's first other token

    @property
    def is_alike(self) -> bool:
        """Whether the runs differ by no more than rounding explains."""
        is_near = self.gap is None or self.gap <= LOGPROB_TOLERANCE
        return self.share >= SHARE_ALIKE and self.has_same_lengths and is_near


def likeness(made: Run, expected: Run) -> Likeness:
    """Compares two runs, branch by branch; `gap` is None if one has no log-probabilities."""
    pairs = list(zip(made.tokens, expected.tokens, strict=True))
    gap = None
    if made.logprobs is not None and expected.logprobs is not None:
        gap = 0.0
        for (a, b), ours, theirs in zip(pairs, made.logprobs, expected.logprobs, strict=True):
            shorter = min(len(a), len(b))
            same = next((n for n in range(shorter) if a[n] != b[n]), shorter)
            gap = max(gap, *np.abs(np.subtract(ours[:same], theirs[:same])), 0.0)
    has_same_lengths = [len(a) for a, _ in pairs] == [len(b) for _, b in pairs]
    return Likeness(statistics.mean(a == b for a, b in pairs), has_same_lengths, gap)


def assert_alike(name: str, made: Run, expected: Run) -> str:
    """A line on how alike two runs are; Disagreement if they are not."""
    found = likeness(made, expected)
    count = len(expected.tokens)
    line = f"{name}: {found.share:.2%} of {count} branches have the same tokens as ours"
    if found.gap is not None:
        line += f", log-probabilities within {found.gap:.0e}"
    if not found.is_alike:
        raise Disagreement(line)
    return line


def greedy_part(work: Workload, count: int = 16, most: int = 32) -> Workload:
    """`count` of the branches, spread over all states, at temperature 0."""
    some = np.linspace(0, len(work.branches) - 1, count).astype(int)
    return dataclasses.replace(
        work,
        sampling=dataclasses.replace(work.sampling, temperature=0.0, top_p=1.0),
        branches=[work.branches[i] for i in some],
        budgets=[min(most, work.budgets[i]) for i in some],
    )


class Rounds(NamedTuple):
    first: dict[str, Run]  # what the first call of each gave
    seconds: dict[str, list[float]]  # on the clock, a round
    cpu_seconds: dict[str, list[float]]  # of all cores together
    compiles: int  # programs compiled after the first calls


def timed_rounds(ready: dict[str, Callable[[], Run]], repeats: int) -> Rounds:
    """A first call of each, then `repeats` rounds in which each runs once."""
    first = {name: run() for name, run in ready.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ready}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in ready}
    compiles = num_compiles()
    for _ in range(repeats):
        for name, run in ready.items():
            start, cpu_start = time.perf_counter(), time.process_time()
            run()
            seconds[name].append(time.perf_counter() - start)
            cpu_seconds[name].append(time.process_time() - cpu_start)
    return Rounds(first, seconds, cpu_seconds, num_compiles() - compiles)


def slower(seconds: dict[str, list[float]], name: str, than: str) -> float:
    """Time of `name` over time of `than`, the median over rounds."""
    pairs = zip(seconds[name], seconds[than], strict=True)
    return statistics.median(a / b for a, b in pairs)
