"""Traces of decoding, compared with a walk over every slot and step."""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from vinejax.engine.decode import GOING, LENGTH, STOP
from vinejax.engine.trace import EndedBranches, HostSteps, Traces

SHARDS, SLOTS, CHUNK = 3, 5, 8


class Branch(NamedTuple):
    """A branch that ended."""

    shard: int
    item: int
    outcome: int
    tokens: list[int]
    logprobs: list[float]


def as_branches(ended: EndedBranches) -> Iterator[Branch]:
    for shard, item, outcome, tokens, logprobs in zip(*ended, strict=True):
        yield Branch(shard, item, outcome, tokens.tolist(), logprobs.tolist())


def chunks_of(
    seed: int, mean: int, idle: float, waits: float = 0.0
) -> list[tuple[HostSteps, np.ndarray]]:
    """Random chunks: slots take new items, some after idle steps; some shards stop early.

    With probability `waits` a branch takes no part in a step and then restarts.
    """
    rng = np.random.default_rng(seed)
    item, left = np.full((SHARDS, SLOTS), -1), np.zeros((SHARDS, SLOTS), int)
    length = left.copy()
    following = [0] * SHARDS
    shape = (SHARDS, SLOTS, CHUNK)
    chunks = []
    for _ in range(30):
        steps = HostSteps(
            np.full(shape, -1, np.int32),
            rng.integers(0, 1000, shape, np.int32),
            rng.normal(size=shape).astype(np.float32),
            np.full(shape, GOING, np.int32),
        )
        taken = rng.choice([0, 3, CHUNK], SHARDS)
        for place in np.ndindex(SHARDS, SLOTS):
            shard, _ = place
            for n in range(taken[shard]):
                if item[place] < 0 and rng.random() >= idle:
                    item[place], length[place] = following[shard], rng.geometric(1 / mean)
                    left[place] = length[place]
                    following[shard] += 1
                if item[place] >= 0 and waits and rng.random() < waits:
                    left[place] = length[place]
                elif item[place] >= 0:
                    steps.item[*place, n] = item[place]
                    left[place] -= 1
                    if left[place] == 0:
                        steps.ended[*place, n] = rng.choice([LENGTH, STOP])
                        item[place] = -1
        chunks.append((steps, taken))
    return chunks


class Walk:
    """The oracle: walks through every slot and step."""

    def __init__(self):
        self.under_way: dict[tuple[int, int], tuple[list[int], list[float]]]
        self.under_way = defaultdict(lambda: ([], []))
        self.last = np.full((SHARDS, SLOTS), -1)  # item of each slot

    def add(self, steps: HostSteps, taken: np.ndarray) -> Iterator[Branch]:
        shards, slots, _ = steps.item.shape
        for shard, slot in np.ndindex(shards, slots):
            for n in range(taken[shard]):
                i = int(steps.item[shard, slot, n])
                if i < 0:  # the slot's unfinished branch restarts
                    self.under_way.pop((shard, int(self.last[shard, slot])), None)
                self.last[shard, slot] = i
                if i >= 0:
                    tokens, logprobs = self.under_way[shard, i]
                    tokens.append(int(steps.token[shard, slot, n]))
                    logprobs.append(float(steps.logprob[shard, slot, n]))
                    if outcome := int(steps.ended[shard, slot, n]):
                        yield Branch(shard, i, outcome, tokens, logprobs)


@pytest.mark.parametrize(
    ("mean", "idle", "waits"),
    [(1, 0.0, 0.0), (3, 0.3, 0.0), (40, 0.0, 0.0), (20, 0.9, 0.0), (3, 0.3, 0.3), (20, 0.0, 0.05)],
)
def test_branches_are_those_of_a_walk_over_all_slots(mean: int, idle: float, waits: float):
    traces, walk = Traces(SHARDS, SLOTS, CHUNK), Walk()
    count = 0
    for steps, taken in chunks_of(mean, mean, idle, waits):
        expected = list(walk.add(steps, taken))
        assert list(as_branches(traces.add(steps, taken))) == expected
        count += len(expected)
    assert count > 10


def test_unfinished_branches_continue_in_the_slots_to_which_they_were_moved():
    traces, walk = Traces(SHARDS, SLOTS, CHUNK), Walk()
    rng = np.random.default_rng(0)
    slots = np.array([rng.permutation(SLOTS) for _ in range(SHARDS)])
    shards = np.arange(SHARDS)[:, None]
    count = 0
    for n, (steps, taken) in enumerate(chunks_of(seed=5, mean=20, idle=0.0)):
        if n == 3:
            traces.move(slots)
        if n >= 3:
            steps = HostSteps(*(x[shards, slots] for x in steps))
        found = list(as_branches(traces.add(steps, taken)))
        assert found == list(walk.add(steps, taken))
        count += len(found)
    assert count > 10


def test_slots_that_are_given_up_end_no_branch():
    one = np.ones((1, 3, 1))
    going = HostSteps(np.arange(3)[None, :, None], 5 * one, 0 * one, 0 * one)
    going = HostSteps(*(x.astype(y) for x, y in zip(going, "iifi", strict=True)))
    traces = Traces(1, 3, 1)
    traces.add(going, np.array([1]))
    traces.move(np.array([[2]]))
    end = HostSteps(*(x[:, 2:] for x in going))._replace(ended=np.array([[[STOP]]]))
    assert list(as_branches(traces.add(end, np.array([1])))) == [
        Branch(0, 2, STOP, [5, 5], [0.0, 0.0])
    ]


def test_chunks_are_kept_no_longer_than_needed():
    """The first slot ends a branch in each chunk, the second in every fifth, the third in one."""
    chunk = 4
    traces = Traces(1, 3, chunk)
    zeros = np.zeros((1, 3, chunk), np.int32)
    steps = HostSteps(zeros, zeros, zeros.astype(np.float32), zeros)
    for n in range(100):
        first, second = np.full(chunk, n), np.full(chunk, 1000 + n // 5)
        third = np.full(chunk, -1 if n else 2000)
        ended = zeros.copy()
        ended[0, 0, -1], ended[0, 1, -1] = LENGTH, STOP if n % 5 == 4 else GOING
        ended[0, 2, -1] = GOING if n else LENGTH
        given = steps._replace(item=np.array([[first, second, third]], np.int32), ended=ended)
        lengths = [len(tokens) for tokens in traces.add(given, np.array([chunk])).tokens]
        assert lengths == ([chunk] if n else [chunk] * 2) + [5 * chunk] * (n % 5 == 4)
        assert traces._tokens.shape[2] <= 12 * chunk
