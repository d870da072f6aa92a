"""Traces of decoding against a walk over every slot and step."""

from collections import defaultdict

import numpy as np
import pytest

from vinejax.rollout.decode import GOING, LENGTH, STOP
from vinejax.rollout.trace import EndedBranch, HostSteps, Traces

SHARDS, SLOTS, CHUNK = 3, 5, 8


def chunks_of(seed: int, mean: int, idle: float) -> list[tuple[HostSteps, np.ndarray]]:
    """Random chunks: slots take new items, some after idle steps; shards stop early, or at once."""
    rng = np.random.default_rng(seed)
    total = SHARDS * SLOTS
    item, left = np.full(total, -1), np.zeros(total, int)
    following = [0] * SHARDS
    chunks = []
    for _ in range(30):
        steps = HostSteps(
            np.full((CHUNK, total), -1, np.int32),
            rng.integers(0, 1000, (CHUNK, total), np.int32),
            rng.normal(size=(CHUNK, total)).astype(np.float32),
            np.full((CHUNK, total), GOING, np.int32),
        )
        taken = np.repeat(rng.choice([0, 3, CHUNK], SHARDS), SLOTS)
        for slot in range(total):
            for n in range(taken[slot]):
                if item[slot] < 0 and rng.random() >= idle:
                    shard = slot // SLOTS
                    item[slot], left[slot] = following[shard], rng.geometric(1 / mean)
                    following[shard] += 1
                if item[slot] >= 0:
                    steps.item[n, slot] = item[slot]
                    left[slot] -= 1
                    if left[slot] == 0:
                        steps.ended[n, slot] = rng.choice([LENGTH, STOP])
                        item[slot] = -1
        chunks.append((steps, taken))
    return chunks


@pytest.mark.parametrize(("mean", "idle"), [(1, 0.0), (3, 0.3), (40, 0.0), (20, 0.9)])
def test_branches_are_those_of_a_walk_over_all_slots(mean: int, idle: float):
    traces = Traces(SHARDS * SLOTS)
    under_way: dict[tuple[int, int], tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
    count = 0
    for steps, taken in chunks_of(mean, mean, idle):
        expected = []
        for slot in range(SHARDS * SLOTS):
            for n in range(taken[slot]):
                i = int(steps.item[n, slot])
                if i >= 0:
                    tokens, logprobs = under_way[slot // SLOTS, i]
                    tokens.append(int(steps.token[n, slot]))
                    logprobs.append(float(steps.logprob[n, slot]))
                    if outcome := int(steps.ended[n, slot]):
                        expected.append(EndedBranch(slot, i, tokens, logprobs, outcome))
        found = list(traces.add(steps, taken))
        assert found == expected
        count += len(found)
    assert count > 10


def test_chunks_are_kept_no_longer_than_needed():
    traces = Traces(2)
    steps = HostSteps(
        np.array([[0, -1], [0, 1]]), np.zeros((2, 2), int), np.zeros((2, 2)), np.zeros((2, 2), int)
    )
    taken = np.array([2, 2])
    for kept in (1, 2, 3):
        assert not list(traces.add(steps._replace(item=np.array([[0, 1], [0, 1]])), taken))
        assert len(traces._chunks) == kept
    ends = steps._replace(item=np.array([[0, 1], [2, 1]]), ended=np.array([[LENGTH, 0], [0, STOP]]))
    assert [len(ended.tokens) for ended in traces.add(ends, taken)] == [7, 8]
    assert len(traces._chunks) == 1, "item 2 began in the last"
