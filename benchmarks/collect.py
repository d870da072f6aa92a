"""The host's CPU time to read the trace of a chunk of decode steps (engine/collect.py), by slots.

    python benchmarks/collect.py [--mean=139] [--chunk=64] [--repeats=5]
    python benchmarks/collect.py --texts [FOLDER] [--repeats=5]

Lengths are geometric with the given mean, as many slots are busy as there are; 0 as the mean: no
branch ends. Printed are milliseconds a chunk, the median and the least, and branches that ended.
With `--texts`, the time to detokenise (engine/finish.py) is measured instead: nine continuations of
64 tokens from each place, with the tokenizer in FOLDER or else one of whole words. Printed are
microseconds a branch, by the number of tokens before the place.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from workload import make_tokenizer

from vinejax.engine.branches import Branch, BranchSet
from vinejax.engine.collect import Collector, DecodedBranch
from vinejax.engine.decode import GOING, LENGTH
from vinejax.engine.finish import Reader
from vinejax.engine.stats import EngineStats
from vinejax.engine.trace import HostSteps

SLOTS = (4096, 12288, 32768)
MOST_BRANCHES = 1 << 20
NO_BRANCHES = BranchSet([], [], [], 0, [])  # it is read only where logits are not finite
PREFIXES = (160, 480, 992, 2016)  # tokens before a continuation
TRUNKS, PLACES, K, TOKENS = 8, 8, 9, 64  # places of a trunk, continuations of a place, their tokens


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


def read_all(tokenizer: Any, prefix: int) -> float:
    """CPU microseconds per branch of reading the texts of continuations after `prefix` tokens."""
    draw = np.random.default_rng(0)
    trunks = draw.integers(0, len(tokenizer), (TRUNKS, prefix)).tolist()
    places = itertools.product(range(TRUNKS), range(prefix - PLACES + 1, prefix + 1), range(K))
    branches = [Branch(trunk, place, seed=i) for i, (trunk, place, _) in enumerate(places)]
    count = len(branches)
    branch_set = BranchSet(trunks, branches, [TOKENS] * count, prefix, [False] * TRUNKS)
    tokens = draw.integers(0, len(tokenizer), (count, TOKENS))
    logprobs = np.zeros(TOKENS, np.float32)
    decoded = [DecodedBranch(i, tokens[i], logprobs, LENGTH) for i in range(count)]
    reader = Reader(tokenizer, (), branch_set, EngineStats())
    start = time.process_time()
    assert sum(1 for _ in reader.read(decoded)) == count
    return 1e6 * (time.process_time() - start) / count


def texts(folder: str, repeats: int) -> None:
    """Prints the time of `read_all` for each of `PREFIXES`."""
    tokenizer = make_tokenizer(512)
    if folder:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
    read_all(tokenizer, PREFIXES[0])  # what is computed once for a tokenizer
    for prefix in PREFIXES:
        times = [read_all(tokenizer, prefix) for _ in range(repeats)]
        middle = statistics.median(times)
        print(f"{prefix} tokens before: {middle:.0f} us a branch, at least {min(times):.0f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", nargs="?", const="", metavar="FOLDER")
    parser.add_argument("--mean", type=int, default=139)
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    if args.texts is not None:
        return texts(args.texts, args.repeats)
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
