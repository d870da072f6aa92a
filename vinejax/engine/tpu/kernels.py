"""Pallas kernels for TPU: attention of groups of queries over the live blocks of their caches.

A group is a set of queries that read the same columns together. These are either the queries of
some lanes of a row, which read the row, or those of one slot, which read the slot's pages. Each of
the M queries sees its own range of columns, `first .. limit - 1`. A block has BLOCK columns. The
live blocks of a group are those from the first to the last that some query sees. Each block is
copied from the chip's memory (HBM) while the previous one is computed. The last block is copied up
to its last visible column only, rounded up to a multiple of PIECE columns. The kernel over rows
runs first and returns softmax parts (`row_body.py`). The kernel over pages continues from these
parts, returns the attention, and writes the step's new columns in place (`page_body.py`).

Keys and values are side by side, [N, K, S, 2 * H]. One copy then fetches both, and heads of 64 fill
the 128 lanes of a register. Letters beside those of `engine/shared_attention.py`: N groups, M
queries of a group, W = 2 * H.

The ideas are from PagedAttention and its kernels (arXiv 2309.06180), the online softmax of
FlashAttention (2205.14135), and cascade attention, which reads a shared prefix once (Hydragen,
2402.05099).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from vinejax.engine.tpu.kernel_body import Ref, scratch_shapes
from vinejax.engine.tpu.page_body import column_shapes, page_body
from vinejax.engine.tpu.row_body import row_body
from vinejax.engine.tpu.schedule import Grid, Schedule, part_shape
from vinejax.model.attention import AttentionRule

VMEM_BYTES = 48 * 2**20  # limit of a kernel's VMEM; a v5p has 64 MiB
IN_HBM = pl.BlockSpec(memory_space=pl.ANY)


class KernelCall(NamedTuple):
    """The arguments that calls of both kernels have in common."""

    schedule: Schedule
    grid: Grid
    rule: AttentionRule
    interpret: bool  # whether the kernel is interpreted, without a TPU

    @property
    def queries(self) -> int:
        """M, the number of queries of a group."""
        return self.schedule.seen.shape[1]


def attend_rows(
    call: KernelCall, q: Float[Array, "queries flat"], cache: Float[Array, "R K S W"]
) -> Float[Array, "queries lanes"]:
    """The softmax parts over the columns that each query sees, in the layout of `PartShape`.

    `q` is [N * M, K * H], group by group. A query that sees no column has mix and sum 0. The source
    of a block is a row; block n begins at column n * BLOCK. S is a multiple of BLOCK.
    """
    lanes = part_shape(cache.shape[1], cache.shape[3] // 2).lanes
    scratch = scratch_shapes(call.grid.groups, call.queries, lanes, cache)
    result = jax.ShapeDtypeStruct((call.grid.total * call.queries, lanes), jnp.float32)
    (part,) = _run(call, row_body, [q], cache, [result], scratch)
    return part[: len(q)]


def attend_pages(
    call: KernelCall,
    q: Float[Array, "queries flat"],
    k: Float[Array, "B flat"],
    v: Float[Array, "B flat"],
    start: Float[Array, "queries lanes"],
    pool: Float[Array, "P K BLOCK W"],
) -> tuple[Float[Array, "queries flat"], jax.Array]:
    """The attention over each query's own columns, merged with `start`, and the new pool.

    `start` has the softmax parts of the queries over their rows (`attend_rows`). The source of a
    block is a page. `k` and `v` are written to the last column, `Schedule.end` - 1, of each group
    that has columns. The pool is changed in place if it is donated. The attention of a group
    without columns is 0. `q` is the same as for `attend_rows`.
    """
    grid, (_, lanes) = call.grid, q.shape
    scratch = scratch_shapes(grid.groups, call.queries, lanes, pool)
    scratch += column_shapes(grid.groups, call.queries, pool)
    result = jax.ShapeDtypeStruct((grid.total * call.queries, lanes), q.dtype)
    written = jax.ShapeDtypeStruct(pool.shape, pool.dtype)
    mixed, pool = _run(call, page_body, [q, k, v, start], pool, [result, written], scratch)
    return mixed[: len(q)], pool


def _run(
    call: KernelCall,
    body: Callable[..., None],
    arrays: list[jax.Array],
    cache: jax.Array,
    results: list[jax.ShapeDtypeStruct],
    scratch: list[Any],
) -> tuple[jax.Array, ...]:
    """Runs the kernel `body` and returns its one or two results.

    The first of `arrays` has the queries. All of `arrays` and the first result are ordered by
    group. The second result, if any, is the new `cache`.
    """
    grid, scalars = call.grid, call.schedule[:-1]
    num_groups = len(arrays[0]) // call.queries
    padded = [
        jnp.pad(x, ((0, (grid.total - num_groups) * (len(x) // num_groups)), (0, 0)))
        for x in arrays
    ]
    inputs = [call.schedule.seen, *padded]
    kernel = pl.pallas_call(
        functools.partial(body, grid, cache.shape[3] // 2, call.rule),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(grid.cores, grid.parts),
            in_specs=[*(_by_group(grid, x) for x in inputs), IN_HBM],
            out_specs=[_by_group(grid, results[0]), *[IN_HBM] * len(results[1:])],
            scratch_shapes=scratch,
        ),
        out_shape=results,
        input_output_aliases={len(scalars) + len(inputs): 1} if len(results) > 1 else {},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=VMEM_BYTES,
            disable_bounds_checks=True,  # sources are in range; checks take 70 bundles a block
        ),
        interpret=call.interpret,
        name=body.__name__,
    )
    return tuple(kernel(*scalars, *inputs, cache))


def _by_group(grid: Grid, x: jax.Array | jax.ShapeDtypeStruct) -> pl.BlockSpec:
    """The BlockSpec of an array whose rows are ordered by group.

    In each step of the grid, only the rows of the step's groups are in VMEM.
    """
    others = (0,) * (len(x.shape) - 1)

    def index(core: jax.Array, part: jax.Array, *_: Ref) -> tuple[jax.Array | int, ...]:
        return core * grid.parts + part, *others

    return pl.BlockSpec((grid.groups * (x.shape[0] // grid.total), *x.shape[1:]), index)
