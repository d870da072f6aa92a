"""Solutions and the continuations of their states: two calls of the engine, and one stream.

`rollout.py --stream`: prompts have GSM8K's lengths, responses end at random, unknown to the engine,
with a mean of a quarter of the cap, which only the longest reach. Each of `--each` solutions of a
prompt has one continuation at each of 4 states.
"""

import statistics
import time
from typing import Any, NamedTuple

from workload import Workload

import vinejax
from vinejax.engine.branches import Branch, Fed, Feed, Grown

STATES = 4


class Sampled(NamedTuple):
    """What a way took, and what it drew."""

    seconds: float
    processor_seconds: float
    decode_steps: int
    slot_steps: int
    tokens: dict[int, list[int]]  # by seed


def after(work: Workload, solution: int, grown: Grown, each: int, cap: int) -> Fed:
    """One continuation at each of 4 states of a solution."""
    prompt = work.trunks[solution // each]
    count = len(grown.tokens)
    used = sorted({n * count // STATES for n in range(STATES)})
    seeds = [1 << 32 | solution << 8 | n for n in range(len(used))]
    branches = [
        Branch(0, len(prompt) + n, seed, len(prompt)) for n, seed in zip(used, seeds, strict=True)
    ]
    return Fed([prompt + grown.tokens], branches, [cap - n for n in used])


def joined(parts: list[Fed]) -> Fed:
    """What is fed at once."""
    found = Fed([], [], [])
    for part in parts:
        for b in part.branches:
            found.branches.append(Branch(len(found.trunks), b.position, b.seed, b.response))  # pyright: ignore
        found.trunks.extend(part.trunks)  # pyright: ignore
        found.max_tokens.extend(part.max_tokens)  # pyright: ignore
    return found


def sampled(engine: vinejax.Engine, work: Workload, each: int, cap: int, is_one: bool) -> Sampled:
    """Solutions and continuations, in one stream or in two calls."""
    count = len(work.trunks) * each
    first = [Branch(n // each, len(work.trunks[n // each]), n) for n in range(count)]
    before, start = engine.stats.mark(), (time.perf_counter(), time.process_time())
    tokens: dict[int, list[int]] = {}
    ended: list[Fed] = []
    left = [0] * len(work.trunks)  # solutions under way, by prompt
    of_prompt: list[list[Fed]] = [[] for _ in work.trunks]
    fed = Fed([], [], [])

    def more() -> Fed | None:
        if not ended and not any(left):
            return None
        new = joined(ended)
        ended.clear()
        fed.branches.extend(new.branches)  # pyright: ignore
        return new

    most = max(map(len, work.trunks)) + cap
    feed = Feed(more, count, count * STATES, most) if is_one else None
    for branch in first:
        left[branch.trunk] += 1
    for i, grown in engine.stream(work.params, work.trunks, first, cap, feed=feed):
        if i >= count:
            tokens[fed.branches[i - count].seed] = grown.tokens
            continue
        tokens[i] = grown.tokens
        prompt = i // each
        of_prompt[prompt].append(after(work, i, grown, each, cap))
        left[prompt] -= 1
        if not left[prompt]:
            ended.extend(of_prompt[prompt])
    if not is_one:
        rest = joined(ended)
        for i, grown in engine.stream(work.params, *rest[:3]):
            tokens[rest.branches[i].seed] = grown.tokens
    made = engine.stats.minus(before)
    took = time.perf_counter() - start[0], time.process_time() - start[1]
    return Sampled(*took, made.decode_steps, made.slot_steps, tokens)


def compare_stream(work: Workload, each: int, cap: int, repeats: int) -> list[str]:
    """Ratios of one stream over two calls: medians over rounds in which both run by turns."""
    engine: Any = vinejax.Engine(
        work.model, work.sampling, work.tokenizer, slots=work.slots, limits=(128, 128 + cap)
    )
    rounds = [
        (sampled(engine, work, each, cap, False), sampled(engine, work, each, cap, True))
        for _ in range(repeats + 1)
    ][1:]
    alike = statistics.mean(
        one.tokens[seed] == drawn for two, one in rounds for seed, drawn in two.tokens.items()
    )
    lines = [f"{alike:.2%} of the branches have the same tokens"]
    for field in ("seconds", "processor_seconds", "decode_steps", "slot_steps"):
        pairs = [(getattr(two, field), getattr(one, field)) for two, one in rounds]
        ratio = statistics.median(one / two for two, one in pairs)
        middle = [statistics.median(x) for x in zip(*pairs, strict=True)]
        lines.append(f"{field}: two calls {middle[0]:.1f}, one stream {middle[1]:.1f}: {ratio:.3f}")
    return lines
