"""The host's CPU time to read the trace of a chunk of decode steps (engine/collect.py), by slots.

    python benchmarks/collect.py [--mean=139] [--chunk=64] [--repeats=5]

Lengths are geometric with the given mean, as many slots are busy as there are; 0 as the mean: no
branch ends. Printed are milliseconds a chunk, the median and the least, and branches that ended.
"""

import argparse
import statistics
import time
from collections.abc import Iterator

import numpy as np

from vinejax.engine.branches import BranchSet
from vinejax.engine.collect import Collector
from vinejax.engine.decode import GOING, LENGTH
from vinejax.engine.stats import EngineStats
from vinejax.engine.trace import HostSteps

SLOTS = (4096, 12288, 32768)
MOST_BRANCHES = 1 << 20
NO_BRANCHES = BranchSet([], [], [], 0, [])  # it is read only where logits are not finite


def chunks(slots: int, chunk: int, mean: int, count: int) -> Iterator[HostSteps]:
    """Traces of `count` chunks, in which every slot is busy at every step."""
    draw = np.random.default_rng(0)
    item = np.arange(slots)
    following = slots
    for _ in range(count):
        shape = (1, slots, chunk)
        steps = HostSteps(
            np.empty(shape, np.int32),
            draw.integers(0, 32000, shape, np.int32),
            draw.normal(size=shape).astype(np.float32),
            np.full(shape, GOING, np.int32),
        )
        for n in range(chunk):
            steps.item[0, :, n] = item
            ends = draw.random(slots) < (1 / mean if mean else 0)
            steps.ended[0, ends, n] = LENGTH
            item = item.copy()
            item[ends] = np.arange(following, following + ends.sum())
            following += int(ends.sum())
        yield steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mean", type=int, default=139)
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    for slots in SLOTS:
        for mean in (0, args.mean):
            order = [[*range(MOST_BRANCHES)]]
            collector = Collector(NO_BRANCHES, order, slots, args.chunk, EngineStats(), lambda _: 0)
            times, ended = [], 0
            for steps in chunks(slots, args.chunk, mean, args.repeats):
                start = time.process_time()
                ended = sum(1 for _ in collector.add(steps))
                times.append(1e3 * (time.process_time() - start))
            middle = statistics.median(times)
            print(
                f"{slots} slots, {ended} ended: {middle:.1f} ms a chunk, at least {min(times):.1f}"
            )


if __name__ == "__main__":
    main()
