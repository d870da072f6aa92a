"""The body of the kernel over the window's rows, which computes parts of a softmax."""

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
    """The kernel's arguments and its result.

    An array in VMEM holds the entries of the groups (`schedule.py`) of one step of the grid.
    """

    seen: Ref  # [groups, M, LANES]
    q: Ref  # [groups * M, K * H]
    cache: Ref  # [R, K, S, W] in HBM
    result: Ref  # [groups * M, lanes] parts of a softmax (`PartShape`)


def row_body(grid: Grid, head_dim: int, rule: AttentionRule, *refs: Ref) -> None:
    """Runs a step of the grid. Blocks are in rows, where block n begins at column n * BLOCK."""
    items, ref, scratch = Items(*refs[:6]), RowArguments(*refs[6:10]), Scratch(*refs[10:])
    step = kernel.current_step(grid, items)

    def copy(i: jax.Array, act: Callable[[Any], None]) -> None:
        first = pl.multiple_of(items.block[i] * BLOCK, BLOCK)
        kernel.copy_block(items, scratch, ref.cache, i, first, act)

    def compute(i: jax.Array) -> None:
        group = items.group[i] - step.first_group
        pl.when(items.is_first(i))(lambda: _begin(scratch))
        kernel.attend(items, scratch, ref.seen, i, group, head_dim, rule)
        pl.when(items.is_last(i))(lambda: _store(scratch, group, head_dim))

    kernel.start_core(step, scratch, copy)
    kernel.unpack_queries(ref.q, scratch, head_dim)
    _clear_results(scratch, head_dim)
    kernel.for_each_item(step, copy, compute)
    kernel.pack_results(ref.result, scratch)


def _clear_results(scratch: Scratch, head_dim: int) -> None:
    """Sets all results to the softmax part over no columns.

    Groups without columns keep this result.
    """
    heads = scratch.kv.shape[1]
    zeros = jnp.zeros(scratch.result.shape, jnp.float32)
    head = lax.broadcasted_iota(jnp.int32, zeros.shape, 2) - part_shape(heads, head_dim).stats
    scratch.result[...] = jnp.where((head >= 0) & (head < heads), kernel.EMPTY, zeros)


def _begin(scratch: Scratch) -> None:
    """Sets the running softmax to the softmax part over no columns, to begin a group."""
    scratch.acc[...] = jnp.zeros_like(scratch.acc)
    scratch.top[...] = jnp.full_like(scratch.top, kernel.EMPTY)
    scratch.total[...] = jnp.zeros_like(scratch.total)


def _store(scratch: Scratch, group: jax.Array, head_dim: int) -> None:
    """Writes the complete softmax part of a group to `scratch.result`."""
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
