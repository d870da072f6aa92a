"""The body of the kernel over the window's rows: parts of a softmax, nothing written to a cache."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from vinejax.engine.tpu import kernel_body as kernel
from vinejax.engine.tpu.kernel_body import Items, Ref, Scratch, head_lanes
from vinejax.engine.tpu.schedule import BLOCK, Grid, part_shape
from vinejax.model.attention import AttentionRule


class RowArguments(NamedTuple):
    """Arguments and result of the kernel; those in VMEM are the entries of this step's groups."""

    seen: Ref  # [groups, M, LANES]
    q: Ref  # [groups * M, K * H]
    cache: Ref  # [R, K, S, W] in HBM
    result: Ref  # [groups * M, lanes] as `PartShape` describes it


def row_body(grid: Grid, head_dim: int, rule: AttentionRule, *refs: Ref) -> None:
    """One step of the grid. A block's source is a row, where block n begins at column n * BLOCK."""
    items, ref, scratch = Items(*refs[:6]), RowArguments(*refs[6:10]), Scratch(*refs[10:])
    place = kernel.current_place(grid, items)

    def copy(i: jax.Array, act: Callable[[Any], None]) -> None:
        first = pl.multiple_of(items.block[i] * BLOCK, BLOCK)
        kernel.copy_block(items, scratch, ref.cache, i, first, act)

    def compute(i: jax.Array) -> None:
        group = items.group[i] - place.first_group
        pl.when(items.is_first(i))(lambda: _begin(scratch))
        kernel.attend(items, scratch, ref.seen, i, group, head_dim, rule)
        pl.when(items.is_last(i))(lambda: _store(scratch, group, head_dim))

    kernel.start_core(place, scratch, copy)
    kernel.unpack_queries(ref.q, scratch, head_dim)
    _clear_results(scratch, head_dim)
    kernel.for_each_item(place, copy, compute)
    kernel.pack_results(ref.result, scratch)


def _clear_results(scratch: Scratch, head_dim: int) -> None:
    """Sets all results to the softmax part over no columns, which groups without items keep."""
    heads = scratch.kv.shape[1]
    zeros = jnp.zeros(scratch.result.shape, jnp.float32)
    head = lax.broadcasted_iota(jnp.int32, zeros.shape, 2) - part_shape(heads, head_dim).stats
    scratch.result[...] = jnp.where((head >= 0) & (head < heads), kernel.EMPTY, zeros)


def _begin(scratch: Scratch) -> None:
    """Resets the running softmax for a new group; it covers no columns yet."""
    scratch.acc[...] = jnp.zeros_like(scratch.acc)
    scratch.top[...] = jnp.full_like(scratch.top, kernel.EMPTY)
    scratch.total[...] = jnp.zeros_like(scratch.total)


def _store(scratch: Scratch, group: jax.Array, head_dim: int) -> None:
    """Writes the finished softmax part of a group to its place in `scratch.result`."""
    heads, num_queries = scratch.kv.shape[1], scratch.result.shape[1]
    shape = part_shape(heads, head_dim)
    lane = lax.broadcasted_iota(jnp.int32, (num_queries, shape.lanes - shape.stats), 1)
    stats = jnp.zeros(lane.shape, jnp.float32)
    for head in range(heads):
        stack, rows = scratch.stacks.place(head)
        mix = scratch.acc[stack, rows, -head_dim:]
        scratch.result[group, :, head_lanes(head, head_dim)] = mix
        stats = jnp.where(lane == head, scratch.top[stack, rows][:, :1], stats)
        stats = jnp.where(lane == heads + head, scratch.total[stack, rows][:, :1], stats)
    scratch.result[group, :, shape.stats :] = stats
