"""A Pallas kernel for TPU: attention of groups of queries over the live blocks of their caches.

A group is a slot with its own tokens, or a row of the window with the slots that read it. Its M
queries see columns `first .. limit - 1` of the row, or of the slot's pages, each its own. Only
blocks of BLOCK columns from the first to the last that some query of a group sees are copied from
the memory of the chip (HBM), the next one while one is computed; of the last only the PIECEs that
are seen.
Rows come first and give parts of a softmax; slots go on from these, so that the kernel gives the
attention itself, and it writes the step's new column, in place.

Keys and values lie side by side, [N, K, S, 2 * H]: one copy fetches both, and heads of 64 fill the
128 lanes of a register. Letters beside those of `attention.py`: N groups, M queries of a group.

Ideas from PagedAttention and its kernels (arXiv 2309.06180), the online softmax of FlashAttention
(2205.14135), and cascade attention, which reads a shared prefix once (Hydragen, 2402.05099).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from vinejax.engine.tpu.kernel_body import WRITES, Ref, run_step
from vinejax.engine.tpu.schedule import BLOCK, Schedule, Shape, part_shape
from vinejax.model.attention import LANES, AttentionRule

TILE_BYTES = 32  # of a lane of a tile in HBM: the columns of one are written together
VMEM_BYTES = 48 * 2**20  # the most that the kernel may take; a v5p has 64 MiB
IN_HBM = pl.BlockSpec(memory_space=pl.ANY)


def mixed_width(head_dim: int) -> int:
    """The width of a query and of a mix while the kernel computes with them.

    Heads of whole registers are cut out of a block; of others the block is used whole: their
    queries are 0 where it has values, and only the second half of a mix is of values.
    """
    return head_dim if head_dim % LANES == 0 else 2 * head_dim


def ragged_part(
    q: Float[Array, "queries flat"],
    cache: Float[Array, "R K S W"],
    schedule: Schedule,
    shape: Shape,
    rule: AttentionRule,
    interpret: bool = False,
) -> Float[Array, "queries lanes"]:
    """The parts of a softmax over the columns that each query sees, as `PartShape` describes them.

    `q` has the M queries of a group, and their heads, one after the other, [N * M, K * H]. A query
    that sees nothing has mix and sum 0. A block of a group is at its place in the sequence that is
    its source. S is a multiple of BLOCK. `interpret` runs the kernel without a TPU.
    """
    lanes = part_shape(cache.shape[1], cache.shape[3] // 2).lanes
    return _call([q], cache, schedule, shape, rule, lanes, jnp.dtype(jnp.float32), interpret)[0]


def ragged_rest(
    q: Float[Array, "queries flat"],
    k: Float[Array, "B flat"],
    v: Float[Array, "B flat"],
    start: Float[Array, "queries lanes"],
    pool: Float[Array, "P K BLOCK W"],
    schedule: Schedule,
    shape: Shape,
    rule: AttentionRule,
    interpret: bool = False,
) -> tuple[Float[Array, "queries flat"], jax.Array]:
    """(the attention over the parts `start` and the columns that each query sees, the pool).

    A block of a group is the page that is its source. `k` and `v` are written to column `end` - 1
    of each group that is read, in place if the pool is donated. A group that is not read has 0. All
    else is as for `ragged_part`.
    """
    arrays = [q, k, v, start]
    mixed, pool = _call(arrays, pool, schedule, shape, rule, q.shape[1], q.dtype, interpret)
    return mixed, pool


def _call(
    arrays: list[jax.Array], cache: jax.Array, schedule: Schedule, shape: Shape,
    rule: AttentionRule, lanes: int, dtype: jnp.dtype, interpret: bool,
) -> list[jax.Array]:  # fmt: skip
    """[a result of as many rows as there are queries, and the cache where columns are written].

    `arrays` are queries and, where columns are written, keys, values and starts.
    """
    writes, num_queries = len(arrays) > 1, arrays[0].shape[0]
    M, W = schedule.seen.shape[1], cache.shape[3]
    num_groups, scalars = num_queries // M, schedule[:-1]
    padded = [
        jnp.pad(x, ((0, (shape.total - num_groups) * (x.shape[0] // num_groups)), (0, 0)))
        for x in arrays
    ]
    inputs = [schedule.seen, *padded]
    out_shape: list[Any] = [jax.ShapeDtypeStruct((shape.total * M, lanes), dtype)]
    aliases = {}
    if writes:
        aliases = {len(scalars) + len(inputs): len(out_shape)}
        out_shape.append(jax.ShapeDtypeStruct(cache.shape, cache.dtype))
    result, *written = pl.pallas_call(
        functools.partial(run_step, shape, W // 2, rule, writes),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(shape.cores, shape.parts),
            in_specs=[*(_by_group(shape, x) for x in inputs), IN_HBM],
            out_specs=[_by_group(shape, out_shape[0]), *[IN_HBM] * len(aliases)],
            scratch_shapes=_scratch(shape.groups, M, lanes, cache, writes),
        ),
        out_shape=out_shape,
        input_output_aliases=aliases,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
        ),
        interpret=interpret,
        name="ragged_rest" if writes else "ragged_part",
    )(*scalars, *inputs, cache)
    return [result[:num_queries], *written]


def _by_group(shape: Shape, x: jax.Array | jax.ShapeDtypeStruct) -> pl.BlockSpec:
    """An array by group, of which each step of the grid has its own groups in VMEM."""
    others = (0,) * (len(x.shape) - 1)

    def index(core: jax.Array, part: jax.Array, *_: Ref) -> tuple[jax.Array | int, ...]:
        return core * shape.parts + part, *others

    return pl.BlockSpec((shape.groups * (x.shape[0] // shape.total), *x.shape[1:]), index)


def _scratch(
    groups: int, queries: int, lanes: int, cache: Float[Array, "R K S W"], writes: bool
) -> list[Ref]:
    """The arrays and semaphores of a core: `Refs` of `kernel_body.py` from `kv` on."""
    heads, W = cache.shape[1], cache.shape[3]
    width = mixed_width(W // 2)
    shapes = [
        pltpu.VMEM((2, heads, BLOCK, W), cache.dtype),
        pltpu.VMEM((groups, heads, queries, width), jnp.float32),
        pltpu.VMEM((heads, queries, width), jnp.float32),
        pltpu.VMEM((heads, queries, LANES), jnp.float32),
        pltpu.VMEM((heads, queries, LANES), jnp.float32),
        pltpu.VMEM((groups, queries, lanes), jnp.float32),
        pltpu.VMEM((groups * queries, lanes), jnp.float32),
        pltpu.SemaphoreType.DMA((2,)),
    ]
    if writes:
        rows = TILE_BYTES // cache.dtype.itemsize
        shapes += [
            pltpu.VMEM((groups, queries, part_shape(heads, W // 2).lanes), jnp.float32),
            pltpu.VMEM((groups, heads, 1, W), jnp.float32),
            pltpu.VMEM((WRITES, heads, rows, W), cache.dtype),
            pltpu.SMEM((1,), jnp.int32),
            pltpu.SemaphoreType.DMA((WRITES,)),
        ]
    return shapes
