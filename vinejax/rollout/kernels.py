"""A Pallas kernel for TPU: attention of groups of queries over the live blocks of their caches.

A group is a slot with its own tokens, or a row of the window with the slots that read it. Its M
queries see columns `first .. limit - 1` of the sequence that it reads, each its own. Only blocks of
BLOCK columns from the first to the last that some query of a group sees are copied from the memory
of the chip (HBM), the next one while one is computed. Rows come first and give parts of a softmax;
slots go on from these, so that the kernel gives the attention itself, and it writes the step's new
column, in place.

Keys and values lie side by side, [N, K, S, 2 * H]: one copy fetches both, and heads of 64 fill the
128 lanes of a register. Letters beside those of `attention.py`: N groups, M queries of a group.

Ideas from PagedAttention and its kernels (arXiv 2309.06180), the online softmax of FlashAttention
(2205.14135), and cascade attention, which reads a shared prefix once (Hydragen, 2402.05099).
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from vinejax.model.attention import LANES, AttentionRule

BLOCK = 128  # columns of one copy
SUBLANES = 8  # rows of a register of 32-bit numbers
TILE_BYTES = 32  # of a lane of a tile in HBM: the columns of one are written together
EMPTY = -0.7 * float(jnp.finfo(jnp.float32).max)  # the maximum of no scores; -inf gives NaN
OPERAND_BYTES = 2**20  # of queries and results in VMEM at a time; Pallas holds them twice
VMEM_BYTES = 48 * 2**20  # the most that the kernel may take; a v5p has 64 MiB
WRITES = 2  # new columns on their way to HBM at a time
IN_HBM = pl.BlockSpec(memory_space=pl.ANY)

Ref = Any  # an array in SMEM, VMEM or HBM, as Pallas gives it to the body of a kernel


class Schedule(NamedTuple):
    """The blocks that a step reads, for all layers with the same window. An item is one block."""

    first_item: jax.Array  # i32[steps + 1] of each step of the kernel's grid
    group: jax.Array  # i32[items] of an item; those after first_item[-1] mean nothing
    block: jax.Array  # i32[items] which block of the group's sequence
    first_block: jax.Array  # i32[N]
    end: jax.Array  # i32[N] the largest limit of a group's queries; 0: the group is not read
    seen: jax.Array  # i32[N, M, LANES] `first` and `limit` of each query in the first two lanes


class PartShape(NamedTuple):
    """Parts of a softmax in one array, f32[.., lanes]: one gather moves them to the slots.

    Of each query the unnormalised mixes of the heads lie one after the other, then, from `stats`
    on, the maximum of each head, and then the sum of each. With an axis of heads, XLA would copy
    the array.
    """

    stats: int
    lanes: int


def part_shape(heads: int, head_dim: int) -> PartShape:
    """The shape of a part over `heads` KV heads."""
    stats = _whole_registers(heads * head_dim)
    return PartShape(stats, stats + _whole_registers(2 * heads))


def _whole_registers(lanes: int) -> int:
    return -(-lanes // LANES) * LANES


class Shape(NamedTuple):
    """How a call of the kernel is divided: `cores` x `parts` steps of `groups` groups each."""

    cores: int  # of one device; each runs its own part of the groups
    parts: int
    groups: int


def shape_of(num_groups: int, queries: int, heads: int, head_dim: int, cores: int) -> Shape:
    """The division of a call with this many groups of `queries` queries for `heads` KV heads."""
    cores = math.gcd(num_groups, cores)
    rows = -(-queries // SUBLANES) * SUBLANES  # in VMEM
    part = part_shape(heads, head_dim)
    numbers = rows * (2 * part.stats + part.lanes + LANES)  # queries, mixes, a part, what is seen
    most = max(OPERAND_BYTES // (4 * numbers), 1)
    of_core = num_groups // cores
    groups = max(n for n in range(1, of_core + 1) if of_core % n == 0 and n <= most)
    return Shape(cores, of_core // groups, groups)


def mixed_width(head_dim: int) -> int:
    """The width of a query and of a mix while the kernel computes with them.

    Heads of whole registers are cut out of a block; of others the block is used whole: their
    queries are 0 where it has values, and only the second half of a mix is of values.
    """
    return head_dim if head_dim % LANES == 0 else 2 * head_dim


def make_schedule(
    first: Int[Array, "N M"], limit: Int[Array, "N M"], columns: int, shape: Shape
) -> Schedule:
    """The live blocks of groups whose queries see columns `first` .. `limit` - 1."""
    num_groups = limit.shape[0]
    sees = limit > first
    end = jnp.max(jnp.where(sees, limit, 0), axis=1)
    begin = jnp.min(jnp.where(sees, first, columns), axis=1)
    first_block = jnp.where(end > 0, begin // BLOCK, 0)
    blocks = -(-end // BLOCK) - first_block
    most = num_groups * (columns // BLOCK)
    group = jnp.repeat(jnp.arange(num_groups), blocks, total_repeat_length=most)
    after = jnp.cumsum(blocks)
    block = jnp.arange(most) - (after - blocks)[group] + first_block[group]
    past = after[shape.groups - 1 :: shape.groups]
    first_item = jnp.concatenate([jnp.zeros(1, after.dtype), past])
    pairs = jnp.stack([first, limit], axis=-1)
    seen = jnp.pad(pairs, ((0, 0), (0, 0), (0, LANES - 2)))
    numbers = (first_item, group, block, first_block, end, seen)
    return Schedule(*(x.astype(jnp.int32) for x in numbers))


def ragged_part(
    q: Float[Array, "N M flat"],
    cache: Float[Array, "R K S W"],
    schedule: Schedule,
    shape: Shape,
    rule: AttentionRule,
    interpret: bool = False,
) -> Float[Array, "N M lanes"]:
    """The parts of a softmax over the columns that each query sees, as `PartShape` describes them.

    `q` has the heads of a query one after the other, [.., K * H]. A query that sees nothing has mix
    and sum 0. N is a multiple of R: so many groups in a row read one sequence. S is a multiple of
    BLOCK. `interpret` runs the kernel without a TPU.
    """
    lanes = part_shape(cache.shape[1], cache.shape[3] // 2).lanes
    part = jax.ShapeDtypeStruct((*q.shape[:2], lanes), jnp.float32)
    return _call(q, cache, schedule, shape, rule, None, part, interpret)[0]


def ragged_rest(
    q: Float[Array, "B M flat"],
    cache: Float[Array, "B K S W"],
    schedule: Schedule,
    shape: Shape,
    rule: AttentionRule,
    start: Float[Array, "B M lanes"],
    new: Float[Array, "B K W"],
    interpret: bool = False,
) -> tuple[Float[Array, "B M flat"], jax.Array]:
    """(the attention over the parts `start` and the columns that each query sees, the cache).

    `new` is written to column `end` - 1 of each group that is read, in place if the cache is
    donated. A group that is not read has 0. All else is as for `ragged_part`.
    """
    mix = jax.ShapeDtypeStruct(q.shape, q.dtype)
    mixed, cache = _call(q, cache, schedule, shape, rule, (start, new), mix, interpret)
    return mixed, cache


def _call(
    q: jax.Array, cache: jax.Array, schedule: Schedule, shape: Shape, rule: AttentionRule,
    rest: tuple[jax.Array, jax.Array] | None, result: jax.ShapeDtypeStruct, interpret: bool,
) -> list[jax.Array]:  # fmt: skip
    """[the result, and the cache where columns are written]; `rest` has start and new columns."""
    (N, M), (R, W) = q.shape[:2], (cache.shape[0], cache.shape[3])
    scalars, inputs = schedule[:5], [q, schedule.seen, *(rest or ())]
    out_shape, aliases = [result], {}
    if rest is not None:
        aliases = {len(scalars) + len(inputs): len(out_shape)}
        out_shape.append(jax.ShapeDtypeStruct(cache.shape, cache.dtype))
    results = pl.pallas_call(
        functools.partial(_kernel, shape, N // R, W // 2, rule, rest is not None),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(shape.cores, shape.parts),
            in_specs=[*(_by_group(shape, x) for x in inputs), IN_HBM],
            out_specs=[_by_group(shape, result), *[IN_HBM] * len(aliases)],
            scratch_shapes=_scratch(M, q.dtype, cache, writes=rest is not None),
        ),
        out_shape=out_shape,
        input_output_aliases=aliases,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
        ),
        interpret=interpret,
        name="ragged_part" if rest is None else "ragged_rest",
    )(*scalars, *inputs, cache)
    return list(results)


def _by_group(shape: Shape, x: jax.Array | jax.ShapeDtypeStruct) -> pl.BlockSpec:
    """An array by group, of which each step of the grid has its own groups in VMEM."""
    others = (0,) * (len(x.shape) - 1)

    def index(core: jax.Array, part: jax.Array, *_: Ref) -> tuple[jax.Array | int, ...]:
        return core * shape.parts + part, *others

    return pl.BlockSpec((shape.groups, *x.shape[1:]), index)


def _scratch(
    queries: int, dtype: jnp.dtype, cache: Float[Array, "R K S W"], writes: bool
) -> list[Ref]:
    """The arrays and semaphores of a core: `_Refs` from `kv` on."""
    heads, W = cache.shape[1], cache.shape[3]
    width = mixed_width(W // 2)
    shapes = [
        pltpu.VMEM((2, heads, BLOCK, W), cache.dtype),
        pltpu.VMEM((heads, queries, width), dtype),
        pltpu.VMEM((heads, queries, width), jnp.float32),
        pltpu.VMEM((heads, queries, LANES), jnp.float32),
        pltpu.VMEM((heads, queries, LANES), jnp.float32),
        pltpu.SemaphoreType.DMA((2,)),
    ]
    if writes:
        rows = TILE_BYTES // cache.dtype.itemsize
        shapes += [
            pltpu.VMEM((WRITES, heads, rows, W), cache.dtype),
            pltpu.SMEM((1,), jnp.int32),
            pltpu.SemaphoreType.DMA((WRITES,)),
        ]
    return shapes


class _Refs(NamedTuple):
    """What the body of the kernel reads and writes; None: only where it writes columns."""

    first_item: Ref  # of the schedule, in SMEM, as all up to `end`
    group: Ref
    block: Ref
    first_block: Ref
    end: Ref
    q: Ref  # [groups, M, K * H] of this step's groups, as `seen`, `start`, `new` and `result`
    seen: Ref  # [groups, M, LANES]
    start: Ref | None  # [groups, M, lanes] as `PartShape` describes it
    new: Ref | None  # [groups, K, W]
    cache: Ref  # [R, K, S, W] in HBM
    result: Ref  # [groups, M, lanes] or, where columns are written, [groups, M, K * H]
    written: Ref | None  # the cache as a result
    kv: Ref  # [2, K, BLOCK, W] the block being computed, and the next
    query: Ref  # [K, M, width] of the group being computed
    acc: Ref  # [K, M, width] mix so far of the group being computed
    top: Ref  # [K, M, LANES] maximum so far, in all lanes
    total: Ref  # [K, M, LANES] sum so far, in all lanes
    arrived: Ref  # semaphores of `kv`
    stage: Ref | None  # [WRITES, K, rows, W] tiles with new columns
    num_written: Ref | None  # [1] by this core
    left: Ref | None  # semaphores of `stage`


def _kernel(
    shape: Shape, shared: int, head_dim: int, rule: AttentionRule, writes: bool, *refs: Ref
) -> None:
    """One step of the grid; `shared` groups in a row read one sequence."""
    if not writes:  # neither a start, new columns nor the cache as a result
        refs = (*refs[:7], None, None, *refs[7:9], None, *refs[9:], None, None, None)
    ref = _Refs._make(refs)
    core, part = pl.program_id(0), pl.program_id(1)
    step = core * shape.parts + part
    core_begin = ref.first_item[core * shape.parts]
    core_end = ref.first_item[(core + 1) * shape.parts]

    def copy(i: jax.Array):
        sequence, buffer = lax.div(ref.group[i], shared), lax.rem(i, 2)
        columns = pl.ds(pl.multiple_of(ref.block[i] * BLOCK, BLOCK), BLOCK)
        source = ref.cache.at[sequence, :, columns]
        return pltpu.make_async_copy(source, ref.kv.at[buffer], ref.arrived.at[buffer])

    _store_nothing(ref, head_dim)

    @pl.when(part == 0)
    def _():
        if ref.num_written is not None:
            ref.num_written[0] = 0

        @pl.when(core_begin < core_end)
        def _():
            copy(core_begin).start()

    def item(i: jax.Array, _: None) -> None:
        group, block = ref.group[i], ref.block[i]
        here = group - step * shape.groups

        @pl.when(i + 1 < core_end)
        def _():
            copy(i + 1).start()

        copy(i).wait()
        pl.when(block == ref.first_block[group])(lambda: _begin(ref, here, head_dim))
        is_last = (block + 1) * BLOCK >= ref.end[group]
        if writes:
            pl.when(is_last)(lambda: _write(ref, group, here, lax.rem(i, 2)))
        _attend(ref, here, block, lax.rem(i, 2), head_dim, rule)
        store = _store_mix if writes else _store_part
        pl.when(is_last)(lambda: store(ref, here, head_dim))

    lax.fori_loop(ref.first_item[step], ref.first_item[step + 1], item, None)
    if writes:
        pl.when(part == shape.parts - 1)(lambda: _finish_writes(ref))


def _of_head(head: int, head_dim: int) -> slice:
    """The lanes of a head where heads lie one after the other."""
    return slice(head * head_dim, (head + 1) * head_dim)


def _in_width(x: jax.Array, width: int, last: bool) -> jax.Array:
    """The lanes of x as the first or the last of `width`, beside zeros."""
    if x.shape[1] == width:
        return x
    zeros = jnp.zeros((x.shape[0], width - x.shape[1]), x.dtype)
    return jnp.concatenate([zeros, x] if last else [x, zeros], axis=1)


def _begin(ref: _Refs, here: jax.Array, head_dim: int) -> None:
    """Puts a group's queries in their places, and the part that it starts from."""
    heads, _, width = ref.acc.shape
    for head in range(heads):
        # In float32, whose lanes can be moved.
        query = ref.q[here, :, _of_head(head, head_dim)].astype(jnp.float32)
        ref.query[head] = _in_width(query, width, last=False).astype(ref.query.dtype)
    if ref.start is None:
        ref.acc[...] = jnp.zeros_like(ref.acc)
        ref.top[...] = jnp.full_like(ref.top, EMPTY)
        ref.total[...] = jnp.zeros_like(ref.total)
        return
    for head in range(heads):
        mix = ref.start[here, :, _of_head(head, head_dim)]
        ref.acc[head] = _in_width(mix, width, last=True)
        top = part_shape(heads, head_dim).stats + head
        for x, lane in (ref.top, top), (ref.total, top + heads):
            x[head] = jnp.broadcast_to(ref.start[here, :, lane : lane + 1], x.shape[1:])


def _attend(
    ref: _Refs, here: jax.Array, block: jax.Array, buffer: jax.Array, head_dim: int,
    rule: AttentionRule,
) -> None:  # fmt: skip
    """Adds a block to the part of the group that is computed, by the online softmax."""
    seen = ref.seen[here]
    column = block * BLOCK + lax.broadcasted_iota(jnp.int32, (seen.shape[0], BLOCK), 1)
    is_seen = (column >= seen[:, :1]) & (column < seen[:, 1:2])  # [M, BLOCK]
    is_cut = head_dim % LANES == 0
    for head in range(ref.acc.shape[0]):
        kv = ref.kv[buffer, head]
        keys = kv[:, :head_dim] if is_cut else kv
        values = kv[:, head_dim:] if is_cut else kv
        products = lax.dot_general(
            ref.query[head], keys, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )
        scores = jnp.where(is_seen, rule.scores(products), EMPTY)
        old = ref.top[head]
        top = jnp.maximum(old, jnp.max(scores, axis=-1, keepdims=True))
        weights = jnp.where(is_seen, jnp.exp(scores - top[:, :1]), 0.0)
        scale = jnp.exp(old - top)
        ref.total[head] = scale * ref.total[head] + jnp.sum(weights, axis=-1, keepdims=True)
        mixed = jnp.dot(weights.astype(values.dtype), values, preferred_element_type=jnp.float32)
        ref.acc[head] = scale[:, :1] * ref.acc[head] + mixed
        ref.top[head] = top


def _store_nothing(ref: _Refs, head_dim: int) -> None:
    """The results of groups that are not read."""
    nothing = jnp.zeros(ref.result.shape, ref.result.dtype)
    if ref.start is None:
        heads = ref.acc.shape[0]
        lane = lax.broadcasted_iota(jnp.int32, nothing.shape, 2)
        head = lane - part_shape(heads, head_dim).stats
        nothing = jnp.where((head >= 0) & (head < heads), EMPTY, nothing)
    ref.result[...] = nothing


def _store_part(ref: _Refs, here: jax.Array, head_dim: int) -> None:
    """Puts the part of the group that is computed among the results."""
    heads, num_queries, _ = ref.acc.shape
    for head in range(heads):
        ref.result[here, :, _of_head(head, head_dim)] = ref.acc[head][:, -head_dim:]
    shape = part_shape(heads, head_dim)
    lane = lax.broadcasted_iota(jnp.int32, (num_queries, shape.lanes - shape.stats), 1)
    stats = jnp.zeros(lane.shape, jnp.float32)
    for head in range(heads):
        stats = jnp.where(lane == head, ref.top[head][:, :1], stats)
        stats = jnp.where(lane == heads + head, ref.total[head][:, :1], stats)
    ref.result[here, :, shape.stats :] = stats


def _store_mix(ref: _Refs, here: jax.Array, head_dim: int) -> None:
    """Puts the attention of the group that is computed among the results."""
    for head in range(ref.acc.shape[0]):
        total = ref.total[head][:, :1]
        mixed = ref.acc[head][:, -head_dim:] / jnp.where(total > 0, total, 1.0)
        ref.result[here, :, _of_head(head, head_dim)] = mixed.astype(ref.result.dtype)


def _write(ref: _Refs, group: jax.Array, here: jax.Array, buffer: jax.Array) -> None:
    """Puts a group's new column into its block, and sends the tile that it lies in to HBM."""
    assert ref.new is not None and ref.written is not None and ref.stage is not None
    assert ref.num_written is not None and ref.left is not None
    rows = ref.stage.shape[2]
    column = ref.end[group] - 1
    tile = pl.multiple_of(lax.div(column, rows) * rows, rows)
    inner = pl.ds(pl.multiple_of(lax.rem(tile, BLOCK), rows), rows)
    row = lax.broadcasted_iota(jnp.int32, (1, rows, 1), 1)
    number = ref.num_written[0]
    place = lax.rem(number, WRITES)
    to_hbm = pltpu.make_async_copy(
        ref.stage.at[place], ref.written.at[group, :, pl.ds(tile, rows)], ref.left.at[place]
    )
    # The tile that lay here before has the same size: waiting for one is waiting for the other.
    pl.when(number >= WRITES)(to_hbm.wait)
    with_new = jnp.where(row == column - tile, ref.new[here][:, None, :], ref.kv[buffer, :, inner])
    ref.kv[buffer, :, inner] = with_new
    ref.stage[place] = with_new
    to_hbm.start()
    ref.num_written[0] = number + 1


def _finish_writes(ref: _Refs) -> None:
    """Waits for the last tiles of a core."""
    assert ref.written is not None and ref.stage is not None
    assert ref.num_written is not None and ref.left is not None
    tile = ref.written.at[0, :, pl.ds(0, ref.stage.shape[2])]
    for place in range(WRITES):
        to_hbm = pltpu.make_async_copy(ref.stage.at[place], tile, ref.left.at[place])
        pl.when(ref.num_written[0] > place)(to_hbm.wait)
