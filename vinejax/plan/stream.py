"""Solutions and their continuations in one stream: its decode steps, by simulation.

Lengths are exponential, as in `cost.decode_steps`. A problem's continuations enter when the last of
its solutions has ended, each solution's where the fewest branches are; waves enter together. With a
lag the solutions are the next iteration's, and all wait from the start.
"""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vinejax.plan.case import Case
from vinejax.plan.cost import usable_slots
from vinejax.plan.memory import PlannedPhase
from vinejax.rollout.one_stream import obstacle, obstacle_on_hosts, wanted

DRAWS = 8  # simulations, whose means are taken
NONE = -1  # no problem


class StreamSteps(NamedTuple):
    """Decode steps of a stream; all shards wait for the slowest."""

    steps: tuple[float, ...]  # in all slots, then in those of each drain
    busy: tuple[float, ...]  # slots of a shard, on average over these steps
    feeds: float  # chunks after which continuations enter


def has_stream(case: Case, phases: list[PlannedPhase]) -> bool:
    """Whether a run of this case would have one stream: as `one_stream.has_one_stream`.

    A plan reads no data, so a task on several hosts is taken for one that rewards no steps.
    """
    cfg = case.cfg
    if cfg.rollout.lag:
        return True
    by_kernel = phases[-1].sizes.storage.read_by_kernel
    if not (case.method.has_plain_values and wanted(cfg, by_kernel) and obstacle(cfg) is None):
        return False
    return case.topology.hosts == 1 or obstacle_on_hosts(cfg, has_steps=False) is None


def stream_steps(case: Case, solutions: PlannedPhase, values: PlannedPhase) -> StreamSteps:
    """The mean over `DRAWS` simulations with the slots of the phase of values."""
    cfg, rng = case.cfg, np.random.default_rng(0)
    problems, each, most = cfg.rollout.prompts, cfg.rollout.per_prompt, cfg.sample.max_tokens
    count = round(values.branches / (problems * each))
    slots, drains = usable_slots(values), [sizes.slots for sizes in values.shapes[1:]]
    found = []
    for _ in range(DRAWS):
        first = rng.exponential(solutions.tokens, (problems, each))
        after = rng.exponential(values.tokens, (problems, each, count))
        lengths = np.ceil(np.minimum(first, most)), np.ceil(np.minimum(after, most))
        given = case.shards, slots, drains, values.sizes.chunk, cfg.rollout.lag > 0
        found.append(simulated(*lengths, *given))
    steps, busy, feeds = zip(*found, strict=True)
    steps, busy = (tuple(np.mean(x, axis=0).tolist()) for x in (steps, busy))
    return StreamSteps(steps, busy, float(np.mean(feeds)))


def simulated(
    solutions: np.ndarray,
    values: np.ndarray,
    shards: int,
    slots: int,
    drains: Sequence[int],
    chunk: int,
    lag: bool = False,
) -> StreamSteps:
    """A stream of solutions of [P, N] tokens, and [P, N, K] of continuations of each.

    While it is fed a chunk has half of `chunk` steps, and what ended in one is known after the
    next. With a `lag` the continuations are of other solutions, and nothing is fed.
    """
    problems, each = solutions.shape
    waiting: list[deque[tuple[float, int]]] = [deque() for _ in range(shards)]  # (tokens, problem)
    busy, under_way = np.zeros(shards, int), np.zeros(shards, int)
    left = [*[each] * problems, math.inf]  # solutions of each problem, and of NONE
    # (step, shard, problem): a branch ends; or, with a number after all shards', a problem is fed.
    events: list[tuple[float, int, int]] = []
    spans: list[tuple[float, float]] = []  # of every branch: the steps at which it begins and ends
    half, fed, feeds = max(chunk // 2, 1), 0, set()
    begins = [0.0]  # as for `steps_of`

    def add(shard: int, lengths: np.ndarray, problem: int) -> None:
        waiting[shard] += [(tokens, problem) for tokens in lengths.tolist()]
        under_way[shard] += len(lengths)

    def begin(shard: int, now: float) -> None:
        while waiting[shard] and busy[shard] < slots:
            tokens, problem = waiting[shard].popleft()
            heapq.heappush(events, (now + tokens, shard, problem))
            spans.append((now, now + tokens))
            busy[shard] += 1

    for i, tokens in enumerate(solutions.ravel()):
        add(i * shards // solutions.size, np.array([tokens]), NONE if lag else i // each)
    if lag:
        fed = problems
        for lengths in values.reshape(-1, values.shape[-1]):
            add(int(under_way.argmin()), lengths, NONE)
    for shard in range(shards):
        begin(shard, 0.0)
    while events:
        now, shard, problem = heapq.heappop(events)
        if shard == shards:
            fed, feeds = fed + 1, feeds | {now}
            for lengths in values[problem]:
                add(place := int(under_way.argmin()), lengths, NONE)
                begin(place, now)
        else:
            busy[shard] -= 1
            under_way[shard] -= 1
            begin(shard, now)
            left[problem] -= 1
            if not left[problem]:
                heapq.heappush(events, ((now // half + 2) * half, shards, problem))
        fullest = under_way.max() if fed == problems else math.inf
        begins += [now for drain in drains[len(begins) - 1 :] if fullest <= drain]
    return steps_of(np.array(spans), begins, shards, len(feeds))


def steps_of(spans: np.ndarray, begins: list[float], shards: int, feeds: int) -> StreamSteps:
    """The steps of branches that begin and end at `spans`, f64[branches, 2].

    `begins` are the steps at which decoding in all slots begins, and in those of each drain.
    """
    begun, ended = spans.T
    until = [*begins, float(ended.max())]
    done = [(np.minimum(ended, x) - np.minimum(begun, x)).sum() / shards for x in until]
    steps = np.diff(until)
    busy = np.diff(done) / np.maximum(steps, 1.0)
    return StreamSteps(tuple(steps.tolist()), tuple(busy.tolist()), feeds)
