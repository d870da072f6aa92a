"""Solutions and their continuations in one stream: its decode steps, by simulation.

Lengths are exponential, as in `cost.decode_steps`. A problem's continuations enter when the last of
its solutions has ended, each solution's where the fewest branches are; waves enter together. Those
that may begin early (`rollout/early.py`) enter where and when their solution has reached the state.
"""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vinejax.core.settings import Config
from vinejax.tools.plan.beside import begins_early
from vinejax.tools.plan.case import Case
from vinejax.tools.plan.cost import usable_slots
from vinejax.tools.plan.memory import PlannedPhase

DRAWS = 8  # simulations, whose means are taken
NONE = -1  # no problem


class StreamSteps(NamedTuple):
    """Decode steps of a stream; all shards wait for the slowest."""

    steps: tuple[float, ...]  # in all slots, then in those of each drain
    busy: tuple[float, ...]  # slots of a shard, on average over these steps
    feeds: float  # prefills of what is fed: at least one after each chunk that gives something


def stream_steps(case: Case, solutions: PlannedPhase, values: PlannedPhase) -> StreamSteps:
    """The mean over `DRAWS` simulations with the slots of the phase of values."""
    cfg, rng, sizes = case.cfg, np.random.default_rng(0), values.sizes
    problems, each, most = cfg.rollout.prompts, cfg.rollout.per_prompt, cfg.sample.max_tokens
    count = values.branches / (problems * each)
    given = case.shards, usable_slots(values), [shape.slots for shape in values.shapes[1:]]
    is_early = begins_early(case, sizes)
    found = []
    for _ in range(DRAWS):
        first = np.ceil(np.minimum(rng.exponential(solutions.tokens, (problems, each)), most))
        if is_early:
            places, after = _early_draws(first.ravel(), count, solutions.tokens, values, cfg, rng)
            early = first.ravel(), places, after, *given, sizes.chunk, sizes.batch
            found.append(simulated_early(*early))
            continue
        after = rng.exponential(values.tokens, (problems, each, round(count)))
        lengths = first, np.ceil(np.minimum(after, most))
        found.append(simulated(*lengths, *given, sizes.chunk))
    steps, busy, feeds = zip(*found, strict=True)
    steps, busy = (tuple(np.mean(x, axis=0).tolist()) for x in (steps, busy))
    return StreamSteps(steps, busy, float(np.mean(feeds)))


def _early_draws(
    solutions: np.ndarray,
    count: float,
    mean: float,
    values: PlannedPhase,
    cfg: Config,
    rng: np.random.Generator,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The places [S] of each solution's states, and the tokens [S, K] of their continuations.

    States are equally far apart, so that solutions of `mean` tokens, with exponential lengths, have
    `count` continuations on average.
    """
    states = max(count / cfg.values.k, 1 + 1e-6)
    between = -mean * math.log1p(-1 / states)
    places = [np.arange(0.0, tokens, between) for tokens in solutions]
    drawn = [rng.exponential(values.tokens, (len(x), cfg.values.k)) for x in places]
    most = cfg.sample.max_tokens
    return places, [
        np.ceil(np.minimum(lengths, most - place[:, None]))
        for lengths, place in zip(drawn, places, strict=True)
    ]


def simulated_early(
    solutions: np.ndarray,
    places: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
    shards: int,
    slots: int,
    drains: Sequence[int],
    chunk: int,
    batch: int,
) -> StreamSteps:
    """A stream of solutions of [N] tokens; those of [S, K] tokens begin at their [S] `places`.

    A chunk has half of `chunk` steps until all solutions have ended. A place is known after the
    chunk that reaches it, and is begun at after the next one. If the solution ends before, what is
    left of it is prefilled once this is known, `batch` solutions of a shard at a time. A slot that
    has become free goes to the branch that has waited longest.
    """
    half, spans = max(chunk // 2, 1), []
    loads: dict[float, np.ndarray] = {}  # by step: trunks of each shard
    known = 0.0  # the step at which all solutions are known to have ended: nothing drains before
    for shard in range(shards):
        own = [i for i in range(len(solutions)) if i * shards // len(solutions) == shard]
        first = [(0.0, float(solutions[i])) for i in own]
        ready: list[tuple[float, float]] = []  # (step, tokens) of continuations
        for i, (begun, ended) in zip(own, _served(first, slots), strict=True):
            entered = (ended // half + 2) * half
            begins = ((begun + places[i]) // half + 2) * half
            is_late = begins >= ended
            for step, lengths in zip(np.where(is_late, entered, begins), values[i], strict=True):
                ready += [(float(step), length) for length in lengths.tolist()]
            if is_late.any():
                loads.setdefault(entered, np.zeros(shards))[shard] += 1
            known = max(known, entered)
        spans.append(_served([*first, *sorted(ready, key=lambda x: x[0])], slots))
    ends = [sorted(end for _, end in of_shard) for of_shard in spans]
    begins = [0.0]
    for drain in drains:
        left = [of_shard[-drain - 1] for of_shard in ends if len(of_shard) > drain]
        begins.append(max([known, begins[-1], *left]))
    last = max(of_shard[-1] for of_shard in ends)
    begins = [min(step, last) for step in begins]
    calls = sum(-(-int(trunks.max()) // batch) for trunks in loads.values())
    every = np.array([span for of_shard in spans for span in of_shard])
    return steps_of(every, begins, shards, calls)


def _served(ready: list[tuple[float, float]], slots: int) -> list[tuple[float, float]]:
    """When branches begin and end that are ready at a step, in order, and have so many tokens."""
    ends: list[float] = []
    spans = []
    for step, tokens in ready:
        begin = step if len(ends) < slots else max(step, heapq.heappop(ends))
        heapq.heappush(ends, begin + tokens)
        spans.append((begin, begin + tokens))
    return spans


def simulated(
    solutions: np.ndarray,
    values: np.ndarray,
    shards: int,
    slots: int,
    drains: Sequence[int],
    chunk: int,
) -> StreamSteps:
    """A stream of solutions of [P, N] tokens, and [P, N, K] of continuations of each.

    While it is fed a chunk has half of `chunk` steps, and what ended in one is known after the
    next.
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
        add(i * shards // solutions.size, np.array([tokens]), i // each)
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
