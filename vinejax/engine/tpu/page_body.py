"""The body of the kernel that computes attention over the slots' pages and writes new columns."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from vinejax.engine.tpu import kernel_body as kernel
from vinejax.engine.tpu.kernel_body import Items, Ref, Scratch, head_lanes
from vinejax.engine.tpu.schedule import BLOCK, Grid, part_shape
from vinejax.model.attention import LANES, AttentionRule

TILE_BYTES = 32  # bytes of a tile per lane; the columns of a tile are written together
WRITES = 2  # number of tiles that are written to HBM at a time


class PageArguments(NamedTuple):
    """The kernel's arguments and results; arrays in VMEM hold the entries of the step's groups."""

    seen: Ref  # [groups, M, LANES]
    q: Ref  # [groups * M, K * H]
    k: Ref  # [groups, K * H] keys of the new column
    v: Ref  # [groups, K * H] values of the new column
    start: Ref  # [groups * M, lanes] parts of a softmax (`PartShape`)
    pool: Ref  # [P, K, BLOCK, W] in HBM
    result: Ref  # [groups * M, K * H]
    new_pool: Ref  # [P, K, BLOCK, W] the pool as a result, in HBM


class Columns(NamedTuple):
    """Memory of a core beside `Scratch`, for the softmax parts of rows and the new columns."""

    starts: Ref  # [groups, M, lanes] softmax parts from which groups start
    new: Ref  # [groups, K, 1, W] keys and values of the new columns
    stage: Ref  # [WRITES, K, rows, W] tiles with new columns
    num_written: Ref  # [1] number of tiles that this core has written
    stage_semaphores: Ref  # semaphores of `stage`


def column_shapes(groups: int, queries: int, pool: Float[Array, "P K BLOCK W"]) -> list[Any]:
    """The shapes of `Columns`."""
    heads, W = pool.shape[1], pool.shape[3]
    rows = TILE_BYTES // pool.dtype.itemsize
    return [
        pltpu.VMEM((groups, queries, part_shape(heads, W // 2).lanes), jnp.float32),
        pltpu.VMEM((groups, heads, 1, W), jnp.float32),
        pltpu.VMEM((WRITES, heads, rows, W), pool.dtype),
        pltpu.SMEM((1,), jnp.int32),
        pltpu.SemaphoreType.DMA((WRITES,)),
    ]


def page_body(grid: Grid, head_dim: int, rule: AttentionRule, *refs: Ref) -> None:
    """Runs one step of the grid. The source of a block is a page, which holds only this block."""
    items, ref = Items(*refs[:6]), PageArguments(*refs[6:14])
    scratch, columns = Scratch(*refs[14:22]), Columns(*refs[22:])
    step = kernel.current_step(grid, items)

    def copy(i: jax.Array, act: Callable[[Any], None]) -> None:
        kernel.copy_block(items, scratch, ref.pool, i, 0, act)

    def compute(i: jax.Array) -> None:
        group = items.group[i] - step.first_group
        is_last = items.is_last(i)
        pl.when(items.is_first(i))(lambda: _begin(scratch, columns, group, head_dim))
        pl.when(is_last)(lambda: _write(items, scratch, columns, ref.new_pool, i, group))
        kernel.attend(items, scratch, ref.seen, i, group, head_dim, rule)
        pl.when(is_last)(lambda: _store(scratch, group, head_dim))

    @pl.when(step.is_first)
    def _():
        columns.num_written[0] = 0

    kernel.start_core(step, scratch, copy)
    kernel.unpack_queries(ref.q, scratch, head_dim)
    _unpack_columns(ref, scratch, columns, head_dim)
    scratch.result[...] = jnp.zeros_like(scratch.result)  # groups without items keep 0
    kernel.for_each_item(step, copy, compute)
    kernel.pack_results(ref.result, scratch)
    pl.when(step.is_last)(lambda: _finish_writes(columns, ref.new_pool))


def _unpack_columns(ref: PageArguments, scratch: Scratch, columns: Columns, head_dim: int) -> None:
    """Copies new columns and softmax parts to the arrays of `columns`, in float32."""
    k, v = ref.k[...].astype(jnp.float32), ref.v[...].astype(jnp.float32)
    for group in range(columns.new.shape[0]):
        columns.starts[group] = ref.start[kernel.group_rows(group, scratch)]
        for head in range(columns.new.shape[1]):
            lanes = head_lanes(head, head_dim)
            both = [x[group : group + 1, lanes] for x in (k, v)]
            columns.new[group, head] = jnp.concatenate(both, axis=1)


def _begin(scratch: Scratch, columns: Columns, group: jax.Array, head_dim: int) -> None:
    """Starts a group's running softmax from the softmax part over the row of its trunk."""
    heads = scratch.kv.shape[1]
    stats = part_shape(heads, head_dim).stats
    for head in range(heads):
        stack, rows = scratch.stacks.place(head)
        # If a whole block serves as values, only the second half of a mix is read.
        mix = columns.starts[group, :, head_lanes(head, head_dim)]
        scratch.acc[stack, rows, -head_dim:] = mix
        for x, lane in (scratch.top, stats + head), (scratch.total, stats + heads + head):
            column = columns.starts[group, :, lane : lane + 1]
            x[stack, rows] = jnp.broadcast_to(column, (len(column), LANES))


def _write(
    items: Items, scratch: Scratch, columns: Columns, new_pool: Ref, i: jax.Array, group: jax.Array
) -> None:
    """Writes a group's new column into the last block of the group, which is item i.

    Also starts a copy to HBM of the column's tile, a few columns that are written together.
    """
    buffer, rows = lax.rem(i, 2), columns.stage.shape[2]
    column = items.end[items.group[i]] - 1 - items.block[i] * BLOCK
    first = pl.multiple_of(lax.div(column, rows) * rows, rows)
    tile = pl.ds(first, rows)
    row = lax.broadcasted_iota(jnp.int32, (1, rows, 1), 1)
    number = columns.num_written[0]
    slot = lax.rem(number, WRITES)
    to_hbm = pltpu.make_async_copy(
        columns.stage.at[slot],
        new_pool.at[items.source[i], :, tile],
        columns.stage_semaphores.at[slot],
    )
    # The previous tile at this place has the same size, so `to_hbm.wait` waits for its copy.
    pl.when(number >= WRITES)(to_hbm.wait)
    new = columns.new[group].astype(scratch.kv.dtype)
    with_new = jnp.where(row == column - first, new, scratch.kv[buffer, :, tile])
    scratch.kv[buffer, :, tile] = with_new
    columns.stage[slot] = with_new
    to_hbm.start()
    columns.num_written[0] = number + 1


def _store(scratch: Scratch, group: jax.Array, head_dim: int) -> None:
    """Writes the attention of a group to `scratch.result`.

    This is the group's weighted sums of values, divided by the sums of the weights.
    """
    for stack in range(scratch.stacks.count):
        total = scratch.total[stack][:, :1]
        scratch.acc[stack] = scratch.acc[stack] / jnp.where(total > 0, total, 1.0)
    for head in range(scratch.kv.shape[1]):
        stack, rows = scratch.stacks.place(head)
        mixed = scratch.acc[stack, rows, -head_dim:]
        scratch.result[group, :, head_lanes(head, head_dim)] = mixed


def _finish_writes(columns: Columns, new_pool: Ref) -> None:
    """Waits until all copies to HBM that the core's calls of `_write` started have ended."""
    tile = new_pool.at[0, :, pl.ds(0, columns.stage.shape[2])]
    for slot in range(WRITES):
        to_hbm = pltpu.make_async_copy(
            columns.stage.at[slot], tile, columns.stage_semaphores.at[slot]
        )
        pl.when(columns.num_written[0] > slot)(to_hbm.wait)
