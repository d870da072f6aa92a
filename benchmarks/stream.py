"""Solutions and the continuations of their states: two calls of the engine, and one stream.

`rollout.py --stream`: prompts have GSM8K's lengths, responses end at random, unknown to the engine,
with a mean of a quarter of the cap, which only the longest reach. Each of `--each` solutions of a
prompt has one continuation at every sixteenth of the cap, so at four states on average. In one
stream they begin once their prompt's solutions have ended, or `early`: on solutions under way.
"""

import statistics
import time
from typing import Any, NamedTuple

import numpy as np
from workload import Workload

import vinejax
from vinejax.engine.branches import Branch, Fed, Feed, Grown, Offshoot

STATES = 16  # of a response that has as many tokens as it may


class Sampled(NamedTuple):
    """What a way took, and what it drew."""

    seconds: float
    processor_seconds: float
    decode_steps: int
    slot_steps: int
    prefill_tokens: int
    tokens: dict[int, list[int]]  # by seed


def after(work: Workload, solution: int, grown: Grown, each: int, cap: int, first: int = 0) -> Fed:
    """One continuation at each state of a solution but the `first` ones."""
    prompt = work.trunks[solution // each]
    used = range(0, len(grown.tokens), cap // STATES)[first:]
    branches = [Branch(0, len(prompt) + n, seed_of(solution, n), len(prompt)) for n in used]
    return Fed([prompt + grown.tokens], branches, [cap - n for n in used])


def seed_of(solution: int, used: int) -> int:
    """The seed of the continuation after these tokens of a solution."""
    return 1 << 32 | solution << 16 | used


def joined(parts: list[Fed]) -> Fed:
    """What is fed at once."""
    found = Fed([], [], [])
    for part in parts:
        for b in part.branches:
            found.branches.append(Branch(len(found.trunks), b.position, b.seed, b.response))  # pyright: ignore
        found.trunks.extend(part.trunks)  # pyright: ignore
        found.max_tokens.extend(part.max_tokens)  # pyright: ignore
    return found


def sampled(engine: vinejax.Engine, work: Workload, each: int, cap: int, way: str) -> Sampled:
    """Solutions and continuations: in 'two calls', in 'one stream', or in one and 'early'."""
    count = len(work.trunks) * each
    first = [Branch(n // each, len(work.trunks[n // each]), n) for n in range(count)]
    before, start = engine.stats.mark(), (time.perf_counter(), time.process_time())
    tokens: dict[int, list[int]] = {}
    solutions: dict[int, Grown] = {}
    ended: list[int] = []  # prompts whose solutions have ended
    left = [each] * len(work.trunks)  # solutions under way, by prompt
    begun = [0] * count  # states of each solution whose continuations were asked for
    seeds: list[int] = []  # of all that was asked for

    def rest_of(prompts: list[int]) -> Fed:
        """The continuations of these prompts' solutions that have not begun."""
        of_prompts = [range(p * each, (p + 1) * each) for p in prompts]
        parts = [after(work, i, solutions[i], each, cap, begun[i]) for x in of_prompts for i in x]
        found = joined([part for part in parts if part.branches])
        seeds.extend(branch.seed for branch in found.branches)
        return found

    def more() -> Fed | None:
        if not ended and not any(left):
            return None
        new = rest_of(ended)
        ended.clear()
        return new

    def offshoots(drawn: dict[int, np.ndarray]) -> list[Offshoot]:
        found = []
        for i, so_far in drawn.items():
            length = len(solutions[i].tokens) if i in solutions else len(so_far)
            used = range(0, length if left[i // each] else 0, cap // STATES)[begun[i] :]
            found += [Offshoot(i, n, seed_of(i, n), cap - n) for n in used]
            begun[i] += len(used)
        seeds.extend(offshoot.seed for offshoot in found)
        return found

    most, early = max(map(len, work.trunks)) + cap, offshoots if way == "early" else None
    feed = Feed(more, count, count * STATES, most, offshoots=early)
    given = work.params, work.trunks, first, cap
    for i, grown in engine.stream(*given, feed=None if way == "two calls" else feed):
        if i >= count:
            tokens[seeds[i - count]] = grown.tokens
            continue
        tokens[i], solutions[i] = grown.tokens, grown
        left[i // each] -= 1
        if not left[i // each]:
            ended.append(i // each)
    if way == "two calls":
        rest = rest_of(ended)
        for i, grown in engine.stream(work.params, *rest[:3]):
            tokens[seeds[i]] = grown.tokens
    made = engine.stats.minus(before)
    took = time.perf_counter() - start[0], time.process_time() - start[1]
    return Sampled(*took, made.decode_steps, made.slot_steps, made.prefill_tokens, tokens)


def compare_stream(work: Workload, each: int, cap: int, repeats: int) -> list[str]:
    """Ratios of one stream over two calls: medians over rounds in which all run by turns."""
    engine: Any = vinejax.Engine(
        work.model, work.sampling, work.tokenizer, slots=work.slots, limits=(128, 128 + cap)
    )
    ways = "two calls", "one stream", "early"
    rounds = [[sampled(engine, work, each, cap, way) for way in ways] for _ in range(repeats + 1)]
    rounds = rounds[1:]  # the first compiles
    alike = statistics.mean(
        one.tokens[seed] == drawn
        for two, *others in rounds
        for one in others
        for seed, drawn in two.tokens.items()
    )
    lines = [f"{alike:.2%} of the branches have the same tokens"]
    for field in Sampled._fields[:-1]:
        rows = [[getattr(one, field) for one in of_round] for of_round in rounds]
        middle = [f"{statistics.median(x):.1f}" for x in zip(*rows, strict=True)]
        ratios = [statistics.median(row[n] / row[0] for row in rows) for n in (1, 2)]
        said = ", ".join(f"{way} {x}" for way, x in zip(ways, middle, strict=True))
        lines.append(f"{field}: {said}: {ratios[0]:.3f}, {ratios[1]:.3f}")
    return lines
