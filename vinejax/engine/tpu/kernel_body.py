"""The code that both decoding kernels share: an online softmax that is computed block by block.

Groups and live blocks are explained in `kernels.py`. An item is here a live block of a group, and
not a branch in the queue. Each step of the grid computes the items of its groups in order. While an
item is computed, the next item is copied from HBM. Scratch arrays are in VMEM and SMEM.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from vinejax.engine.tpu.schedule import BLOCK, PIECE, Grid
from vinejax.engine.tpu.stacks import Stacks, stacks_of
from vinejax.model.attention import LANES, AttentionRule

EMPTY = -0.7 * float(jnp.finfo(jnp.float32).max)  # maximum of no scores; -inf would give NaN

Ref = Any  # Pallas's reference to an array in SMEM, VMEM or HBM
Copy = Callable[[jax.Array, Callable[[Any], None]], None]  # takes an item, and `start` or `wait`


class Items(NamedTuple):
    """The scalars of a `Schedule`, in SMEM."""

    first_item: Ref
    group: Ref
    block: Ref
    source: Ref
    first_block: Ref
    end: Ref

    def is_first(self, i: jax.Array) -> jax.Array:
        """Whether item i is the first block of its group."""
        return self.block[i] == self.first_block[self.group[i]]

    def is_last(self, i: jax.Array) -> jax.Array:
        """Whether item i is the last block of its group."""
        return (self.block[i] + 1) * BLOCK >= self.end[self.group[i]]


class Scratch(NamedTuple):
    """The memory of a core; `acc`, `top` and `total` are the current group's running softmax.

    The kernel's queries and results have one row per query. A group number that is known only at
    run time cannot index these rows. A step therefore first copies the queries to `query`, which
    has an axis of groups, and in the end copies `result` to the kernel's results.
    """

    kv: Ref  # [2, K, BLOCK, W] current block and next block
    kv_semaphores: Ref  # semaphores of `kv`
    query: Ref  # [groups, stacks, rows, width]
    acc: Ref  # [stacks, rows, width] unnormalised mix
    top: Ref  # [stacks, rows, LANES] maximum, in all lanes
    total: Ref  # [stacks, rows, LANES] sum, in all lanes
    result: Ref  # [groups, M, lanes]
    rows: Ref  # [groups * M, lanes] results before rounding

    @property
    def stacks(self) -> Stacks:
        return stacks_of(self.kv.shape[1], self.result.shape[1])


class GridStep(NamedTuple):
    """The current step of the grid."""

    is_first: jax.Array  # whether it is the first step of its core
    is_last: jax.Array  # whether it is the last step of its core
    first_group: jax.Array  # first group of the step
    begin: jax.Array  # first item of the step
    end: jax.Array  # item after the last one of the step
    core_begin: jax.Array  # first item of the core
    core_end: jax.Array  # item after the last one of the core


def scratch_shapes(
    groups: int, queries: int, lanes: int, cache: Float[Array, "R K S W"]
) -> list[Any]:
    """The shapes of `Scratch`; `lanes` is the length of the last axis of a result."""
    heads, W = cache.shape[1], cache.shape[3]
    width = mix_width(W // 2)
    stacks = stacks_of(heads, queries)
    return [
        pltpu.VMEM((2, heads, BLOCK, W), cache.dtype),
        pltpu.SemaphoreType.DMA((2,)),
        pltpu.VMEM((groups, stacks.count, stacks.rows, width), jnp.float32),
        pltpu.VMEM((stacks.count, stacks.rows, width), jnp.float32),
        pltpu.VMEM((stacks.count, stacks.rows, LANES), jnp.float32),
        pltpu.VMEM((stacks.count, stacks.rows, LANES), jnp.float32),
        pltpu.VMEM((groups, queries, lanes), jnp.float32),
        pltpu.VMEM((groups * queries, lanes), jnp.float32),
    ]


def mix_width(head_dim: int) -> int:
    """The width of a query and of a mix (a weighted sum of values) inside the kernel.

    If a head fills whole registers, its keys and values are sliced from a block. Otherwise the
    whole block, keys beside values, serves both as keys and as values. Queries are then 0 where the
    block has values. The second half of a mix is the sum over values; the first half is not used.
    """
    return head_dim if head_dim % LANES == 0 else 2 * head_dim


def current_step(grid: Grid, items: Items) -> GridStep:
    """The current step. A kernel must call this function outside conditions and loops."""
    core, part = pl.program_id(0), pl.program_id(1)
    step = core * grid.parts + part
    return GridStep(
        is_first=part == 0,
        is_last=part == grid.parts - 1,
        first_group=step * grid.groups,
        begin=items.first_item[step],
        end=items.first_item[step + 1],
        core_begin=items.first_item[core * grid.parts],
        core_end=items.first_item[(core + 1) * grid.parts],
    )


# The two actions of a copy.
start, wait = operator.methodcaller("start"), operator.methodcaller("wait")


def copy_block(
    items: Items, scratch: Scratch, cache: Ref, i: jax.Array, first: jax.Array | int,
    act: Callable[[Any], None],
) -> None:  # fmt: skip
    """Starts or awaits the copy of item i, which begins at column `first` of its source.

    `act` is `start` or `wait`. The copy covers the columns up to the last visible one, rounded up
    to a multiple of PIECE. As sizes must be static, the copy is made in several parts, whose
    lengths are powers of two. To issue one copy, chosen among all lengths, would take twice
    as long, because those that are not chosen would be issued, too, without effect.
    """
    group, source, buffer = items.group[i], items.source[i], i & 1
    piece = min(PIECE, BLOCK)
    seen = items.end[group] - items.block[i] * BLOCK
    length = jnp.minimum((seen + piece - 1) & -piece, BLOCK)

    def copy_part(size: int) -> None:
        begin = 0 if size == BLOCK else pl.multiple_of(length & -2 * size, 2 * size)
        columns = cache.at[source, :, pl.ds(first + begin, size)]
        target = scratch.kv.at[buffer, :, pl.ds(begin, size)]
        act(pltpu.make_async_copy(columns, target, scratch.kv_semaphores.at[buffer]))

    size = BLOCK
    while size >= piece:
        pl.when(length & size != 0)(functools.partial(copy_part, size))
        size //= 2


def start_core(step: GridStep, scratch: Scratch, copy: Copy) -> None:
    """In the first step of a core, sets `scratch.kv` to 0 and starts the core's first copy."""

    @pl.when(step.is_first)
    def _():
        # Memory that no copy has filled may hold NaN, and 0 · NaN is NaN.
        scratch.kv[...] = jnp.zeros_like(scratch.kv)
        pl.when(step.core_begin < step.core_end)(lambda: copy(step.core_begin, start))


def for_each_item(step: GridStep, copy: Copy, compute: Callable[[jax.Array], None]) -> None:
    """Calls `compute` with each copied item of the step, while the next item is being copied."""

    def item(i: jax.Array, _: None) -> None:
        pl.when(i + 1 < step.core_end)(lambda: copy(i + 1, start))
        copy(i, wait)
        compute(i)

    lax.fori_loop(step.begin, step.end, item, None)


def head_lanes(head: int, head_dim: int) -> slice:
    """The slice of a head's entries in a last axis that has all heads one after the other."""
    return slice(head * head_dim, (head + 1) * head_dim)


def group_rows(group: int, scratch: Scratch) -> slice:
    """The slice of a group's rows in an array with the rows of all groups one after the other."""
    num_queries = scratch.result.shape[1]
    return slice(group * num_queries, (group + 1) * num_queries)


def unpack_queries(q: Ref, scratch: Scratch, head_dim: int) -> None:
    """Copies queries [groups * M, K * H], M per group, to `scratch.query`, in float32."""
    groups, _, _, width = scratch.query.shape
    rows = q[...].astype(jnp.float32)
    for group in range(groups):
        for head in range(scratch.kv.shape[1]):
            query = rows[group_rows(group, scratch), head_lanes(head, head_dim)]
            if width > head_dim:
                zeros = jnp.zeros((len(query), width - head_dim), jnp.float32)
                query = jnp.concatenate([query, zeros], axis=1)
            stack, of_head = scratch.stacks.place(head)
            scratch.query[group, stack, of_head] = query


def pack_results(result: Ref, scratch: Scratch) -> None:
    """Copies `scratch.result` to `result` [groups * M, lanes], in the dtype of `result`.

    M is the number of queries of a group.
    """
    for group in range(scratch.result.shape[0]):
        scratch.rows[group_rows(group, scratch)] = scratch.result[group]
    result[...] = scratch.rows[...].astype(result.dtype)


def attend(
    items: Items, scratch: Scratch, seen: Ref, i: jax.Array, group: jax.Array, head_dim: int,
    rule: AttentionRule,
) -> None:  # fmt: skip
    """Adds item i to the running softmax of its group.

    `group` is the number of this group among the groups of the step.
    """
    stacks, kv = scratch.stacks, scratch.kv[i & 1]
    bounds = jnp.concatenate([seen[group]] * stacks.heads, axis=0)  # [rows, LANES]
    column = items.block[i] * BLOCK + lax.broadcasted_iota(jnp.int32, (stacks.rows, BLOCK), 1)
    is_seen = (column >= bounds[:, :1]) & (column < bounds[:, 1:2])  # [rows, BLOCK]
    is_cut = head_dim % LANES == 0
    keys, values = (kv[:, :, :head_dim], kv[:, :, head_dim:]) if is_cut else (kv, kv)
    for stack in range(stacks.count):
        heads = stacks.of_stack(stack)
        query = scratch.query[group, stack].astype(keys.dtype)
        products = stacks.pick([_product(query, keys[head], 1) for head in heads])
        scores = jnp.where(is_seen, rule.scores(products), EMPTY)
        old = scratch.top[stack]
        top = jnp.maximum(old, jnp.max(scores, axis=-1, keepdims=True))
        weights = jnp.where(is_seen, jnp.exp(scores - top[:, :1]), 0.0)
        scale = jnp.exp(old - top)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        scratch.total[stack] = scale * scratch.total[stack] + total
        weights = weights.astype(values.dtype)
        mixed = stacks.pick([_product(weights, values[head], 0) for head in heads])
        scratch.acc[stack] = scale[:, :1] * scratch.acc[stack] + mixed
        scratch.top[stack] = top


def _product(x: jax.Array, y: jax.Array, axis: int) -> Float[Array, "rows n"]:
    """The product of x with one head's keys or values y, contracted over `axis` of y.

    The product is in float32.
    """
    dimensions = (((1,), (axis,)), ((), ()))
    return lax.dot_general(x, y, dimensions, preferred_element_type=jnp.float32)
