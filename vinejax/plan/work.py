"""Floating-point operations and bytes of each program, by arithmetic.

Both are of one chip and one call; of the decode loop, of one step. Operations are those that the
model needs: two a weight and token, and causal attention, which a plain XLA attention doubles.
Bytes are weights, keys and values, and what products read and write; a compiler that fuses worse
moves more. XLA's own `cost_analysis` counts the body of a loop once and is not used.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from vinejax.plan.case import Case
from vinejax.plan.memory import (
    FLOAT32,
    Phase,
    decode_copy_bytes,
    mean_tokens,
    train_length,
    weight_bytes,
)
from vinejax.rollout.arrays import cache_bytes
from vinejax.rollout.assign import LONG_TAIL

# Passes over a microbatch's products: forward, and twice as many backward.
FORWARD, BACKWARD = 1, 2


class Work(NamedTuple):
    flops: float
    bytes: float

    def times(self, count: float) -> "Work":
        return Work(self.flops * count, self.bytes * count)

    def plus(self, other: "Work") -> "Work":
        return Work(self.flops + other.flops, self.bytes + other.bytes)


def products(case: Case) -> Iterator[tuple[int, int, int]]:
    """(inputs, outputs, how often) of the products of one token, but for the output matrix."""
    cfg = case.model.cfg
    heads, kv_heads = cfg.num_heads * cfg.head_dim, cfg.num_kv_heads * cfg.head_dim
    yield cfg.width, heads, cfg.num_layers
    yield cfg.width, kv_heads, 2 * cfg.num_layers
    yield heads, cfg.width, cfg.num_layers
    yield cfg.width, cfg.ffn, 2 * cfg.num_layers
    yield cfg.ffn, cfg.width, cfg.num_layers


def num_multiplied(case: Case, with_head: bool) -> int:
    """Weights that a token is multiplied with."""
    cfg = case.model.cfg
    layers = sum(a * b * count for a, b, count in products(case))
    return layers + (cfg.width * cfg.vocab_size if with_head else 0)


def attention_flops(case: Case, visible: float) -> float:
    """Of one query in all layers, that sees so many positions where no window ends before."""
    cfg = case.model.cfg
    seen = sum(min(visible, cfg.window(i) or math.inf) for i in range(cfg.num_layers))
    return 4 * cfg.num_heads * cfg.head_dim * seen


def sequences(case: Case, rows: float, length: int, head: bool) -> Work:
    """A forward pass over `rows` sequences of one shard, without reading the weights."""
    cfg, tokens = case.model.cfg, rows * length
    item = np.dtype(case.model.compute.dtype).itemsize
    flops = 2 * num_multiplied(case, head) + attention_flops(case, length / 2)
    moved = item * sum((a + b) * count for a, b, count in products(case))
    moved += 2 * FLOAT32 * cfg.vocab_size if head else 0  # written and read
    return Work(tokens * flops / case.tensor, tokens * moved / case.tensor)


def rounded_weights(case: Case) -> float:
    """Bytes of the weights in the compute dtype, whole over fsdp: what a pass reads."""
    item = np.dtype(case.model.compute.dtype).itemsize
    return item * num_multiplied(case, with_head=True) / case.tensor


def prefill(case: Case, phase: Phase) -> Work:
    sizes = phase.sizes
    kv = sizes.batch * cache_bytes(case.model, case.mesh, sizes.columns)
    work = sequences(case, sizes.batch, sizes.columns, head=False)
    return work.plus(Work(0, kv + decode_copy_bytes(case)))


def decode_step(case: Case, phase: Phase) -> Work:
    """One token for every slot. The window is read whole, as is the ring: one slot in it is old."""
    sizes, cfg = phase.sizes, case.model.cfg
    visible = mean_tokens(case) + phase.trunk_tokens / 2
    flops = 2 * num_multiplied(case, with_head=True) + attention_flops(case, visible)
    table = 0 if cfg.tied_head else cfg.vocab_size * cfg.width
    item = np.dtype(case.model.compute.dtype).itemsize
    read = decode_copy_bytes(case) - table * item / case.tensor  # of the embedding a few rows
    read += sizes.rows * cache_bytes(case.model, case.mesh, sizes.columns)
    read += sizes.slots * cache_bytes(case.model, case.mesh, sizes.width)
    read += 2 * FLOAT32 * sizes.slots * cfg.vocab_size / case.tensor
    return Work(sizes.slots * flops / case.tensor, read)


def pass_rows(case: Case) -> int:
    """Sequences of one pass, over all shards."""
    return case.cfg.ppo.microbatch or case.cfg.ppo.minibatch


def score(case: Case) -> Work:
    rows = pass_rows(case) / case.shards
    work = sequences(case, rows, train_length(case), head=True)
    return work.plus(Work(0, weight_bytes(case) + 2 * rounded_weights(case)))


def train_step(case: Case) -> Work:
    """One update on a minibatch: passes over its microbatches, then AdamW.

    A pass gathers weights (writes and reads them) and so does its backward pass; AdamW reads
    weights, moments and gradients and writes all but the last, in float32.
    """
    again = 1 if case.cfg.model.remat == "full" else 0
    passes = FORWARD + BACKWARD + again
    size = pass_rows(case)
    one = sequences(case, size / case.shards, train_length(case), head=True).times(passes)
    one = one.plus(Work(0, 2 * (2 + again) * rounded_weights(case)))
    count = case.cfg.ppo.minibatch // size
    return one.times(count).plus(Work(0, 7 * weight_bytes(case)))


def analytic(case: Case, phase: Phase) -> dict[str, Work]:
    """The work of each program of an iteration, by its name."""
    work = {
        "prefill": prefill(case, phase), "decode": decode_step(case, phase),
        "score": score(case), "train_step": train_step(case),
    }  # fmt: skip
    if case.cfg.method == "ppo":
        work["critic_step"] = train_step(case)
    # Read in float32 where they lie, written rounded.
    return {"decode copy": Work(0, weight_bytes(case) + decode_copy_bytes(case))} | work


def calls(case: Case, phase: Phase) -> dict[str, float]:
    """How often a phase calls its programs: prefills, and steps of the decode loop."""
    sizes = phase.sizes
    a_shard = math.ceil(phase.trunks / case.shards)
    most = case.cfg.sample.max_tokens
    # Slots are busy while branches wait; then the longest, that many times the mean, ends alone.
    busy = phase.branches * phase.tokens / (case.shards * sizes.slots)
    alone = min(LONG_TAIL * phase.tokens, most)
    return {"prefill": math.ceil(a_shard / sizes.batch), "decode": max(busy, alone)}
