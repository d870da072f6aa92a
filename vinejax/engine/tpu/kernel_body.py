"""The steps that both decoding kernels share (`kernels.py`): block by block, an online softmax.

Each step of the grid goes in order through its items, the live blocks of its own groups, while the
next block is copied from HBM. Scratch arrays lie in VMEM and SMEM.
"""

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
from vinejax.model.attention import LANES, AttentionRule

EMPTY = -0.7 * float(jnp.finfo(jnp.float32).max)  # the maximum of no scores; -inf gives NaN

Ref = Any  # an array in SMEM, VMEM or HBM, as Pallas gives it to the body of a kernel
Copy = Callable[[jax.Array, Callable[[Any], None]], None]  # (item, start or wait)


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
    """Memory of a core. `acc`, `top` and `total` are the softmax of the group being computed.

    Arrays with a row per query cannot be indexed by a group known only at run time, so queries are
    put into arrays by group first, and results are taken out of them last.
    """

    kv: Ref  # [2, K, BLOCK, W] the block being computed, and the next
    arrived: Ref  # semaphores of `kv`
    query: Ref  # [groups, K, M, width]
    acc: Ref  # [K, M, width] unnormalised mix
    top: Ref  # [K, M, LANES] maximum, in all lanes
    total: Ref  # [K, M, LANES] sum, in all lanes
    result: Ref  # [groups, M, lanes]
    rows: Ref  # [groups * M, lanes] results before they are rounded


class Place(NamedTuple):
    """The current step of the grid."""

    is_first: jax.Array  # whether it is the first step of its core
    is_last: jax.Array
    first_group: jax.Array
    begin: jax.Array  # first item of the step
    end: jax.Array  # after the last item of the step
    core_begin: jax.Array
    core_end: jax.Array


def scratch_shapes(
    groups: int, queries: int, lanes: int, cache: Float[Array, "R K S W"]
) -> list[Any]:
    """The shapes of `Scratch`; results have this many `lanes`."""
    heads, W = cache.shape[1], cache.shape[3]
    width = mix_width(W // 2)
    return [
        pltpu.VMEM((2, heads, BLOCK, W), cache.dtype),
        pltpu.SemaphoreType.DMA((2,)),
        pltpu.VMEM((groups, heads, queries, width), jnp.float32),
        pltpu.VMEM((heads, queries, width), jnp.float32),
        pltpu.VMEM((heads, queries, LANES), jnp.float32),
        pltpu.VMEM((heads, queries, LANES), jnp.float32),
        pltpu.VMEM((groups, queries, lanes), jnp.float32),
        pltpu.VMEM((groups * queries, lanes), jnp.float32),
    ]


def mix_width(head_dim: int) -> int:
    """The width of a query and of a mix while the kernel computes with them.

    If a head fills whole registers, its keys and values are cut out of a block. Otherwise the block
    is used whole as both: queries are padded with 0 where it has values, and of a mix only the
    second half, over values, counts.
    """
    return head_dim if head_dim % LANES == 0 else 2 * head_dim


def current_place(grid: Grid, items: Items) -> Place:
    """The step that runs. `program_id` is read here, outside of any condition or loop."""
    core, part = pl.program_id(0), pl.program_id(1)
    step = core * grid.parts + part
    return Place(
        is_first=part == 0,
        is_last=part == grid.parts - 1,
        first_group=step * grid.groups,
        begin=items.first_item[step],
        end=items.first_item[step + 1],
        core_begin=items.first_item[core * grid.parts],
        core_end=items.first_item[(core + 1) * grid.parts],
    )


start, wait = operator.methodcaller("start"), operator.methodcaller("wait")  # of a copy


def copy_block(
    items: Items, scratch: Scratch, cache: Ref, i: jax.Array, first: jax.Array | int,
    act: Callable[[Any], None],
) -> None:  # fmt: skip
    """Starts or awaits the copy of item i, which begins at column `first` of its source.

    It covers the columns up to the last that is seen, rounded up to a PIECE.
    """
    buffer = lax.rem(i, 2)
    seen = items.end[items.group[i]] - items.block[i] * BLOCK

    def search(low: int, high: int) -> None:
        """Copies the size up to `high` that covers `seen`: a binary search, as sizes are static."""
        if high - low > PIECE:
            middle = (low + high) // 2
            lax.cond(seen <= middle, lambda: search(low, middle), lambda: search(middle, high))
            return
        columns = cache.at[items.source[i], :, pl.ds(first, high)]
        target = scratch.kv.at[buffer, :, pl.ds(0, high)]
        act(pltpu.make_async_copy(columns, target, scratch.arrived.at[buffer]))

    search(0, BLOCK)


def start_core(place: Place, scratch: Scratch, copy: Copy) -> None:
    """Starts the first copy of a core."""

    @pl.when(place.is_first)
    def _():
        # Memory that no copy has filled yet may hold NaN, and 0 · NaN is NaN.
        scratch.kv[...] = jnp.zeros_like(scratch.kv)
        pl.when(place.core_begin < place.core_end)(lambda: copy(place.core_begin, start))


def for_each_item(place: Place, copy: Copy, compute: Callable[[jax.Array], None]) -> None:
    """Calls `compute` with each item of the step once it is copied; meanwhile copies the next."""

    def item(i: jax.Array, _: None) -> None:
        pl.when(i + 1 < place.core_end)(lambda: copy(i + 1, start))
        copy(i, wait)
        compute(i)

    lax.fori_loop(place.begin, place.end, item, None)


def head_lanes(head: int, head_dim: int) -> slice:
    """The slice of one head's lanes in an array that holds the lanes of all heads consecutively."""
    return slice(head * head_dim, (head + 1) * head_dim)


def group_rows(group: int, scratch: Scratch) -> slice:
    """The slice of one group's rows in an array that holds the rows of all groups consecutively."""
    num_queries = scratch.acc.shape[1]
    return slice(group * num_queries, (group + 1) * num_queries)


def unpack_queries(q: Ref, scratch: Scratch, head_dim: int) -> None:
    """Puts queries [groups * M, K * H] into an array by group, in float32."""
    groups, heads, num_queries, width = scratch.query.shape
    rows = q[...].astype(jnp.float32)
    for group in range(groups):
        for head in range(heads):
            query = rows[group_rows(group, scratch), head_lanes(head, head_dim)]
            if width > head_dim:
                zeros = jnp.zeros((num_queries, width - head_dim), jnp.float32)
                query = jnp.concatenate([query, zeros], axis=1)
            scratch.query[group, head] = query


def pack_results(result: Ref, scratch: Scratch) -> None:
    """Writes the results of a step as rows [groups * M, lanes], in the dtype of `result`."""
    for group in range(scratch.result.shape[0]):
        scratch.rows[group_rows(group, scratch)] = scratch.result[group]
    result[...] = scratch.rows[...].astype(result.dtype)


def attend(
    items: Items, scratch: Scratch, seen: Ref, i: jax.Array, group: jax.Array, head_dim: int,
    rule: AttentionRule,
) -> None:  # fmt: skip
    """Adds item i to the running softmax of its group, number `group` within the step."""
    bounds = seen[group]
    column = items.block[i] * BLOCK + lax.broadcasted_iota(jnp.int32, (len(bounds), BLOCK), 1)
    is_seen = (column >= bounds[:, :1]) & (column < bounds[:, 1:2])  # [M, BLOCK]
    is_cut = head_dim % LANES == 0
    for head in range(scratch.acc.shape[0]):
        kv = scratch.kv[lax.rem(i, 2), head]
        keys = kv[:, :head_dim] if is_cut else kv
        values = kv[:, head_dim:] if is_cut else kv
        query = scratch.query[group, head].astype(keys.dtype)
        products = lax.dot_general(
            query, keys, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )
        scores = jnp.where(is_seen, rule.scores(products), EMPTY)
        old = scratch.top[head]
        top = jnp.maximum(old, jnp.max(scores, axis=-1, keepdims=True))
        weights = jnp.where(is_seen, jnp.exp(scores - top[:, :1]), 0.0)
        scale = jnp.exp(old - top)
        scratch.total[head] = scale * scratch.total[head] + jnp.sum(weights, axis=-1, keepdims=True)
        mixed = jnp.dot(weights.astype(values.dtype), values, preferred_element_type=jnp.float32)
        scratch.acc[head] = scale[:, :1] * scratch.acc[head] + mixed
        scratch.top[head] = top
