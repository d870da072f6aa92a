"""The body of the decoding kernel: what a core does in one step of the grid (`kernels.py`).

A step has its own groups, and goes through their live blocks, its items, one after the other, while
the next is copied. All that is not an argument of the kernel lies in VMEM and SMEM.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from vinejax.engine.tpu.schedule import BLOCK, PIECE, Shape, part_shape
from vinejax.model.attention import LANES, AttentionRule

EMPTY = -0.7 * float(jnp.finfo(jnp.float32).max)  # the maximum of no scores; -inf gives NaN
WRITES = 2  # new columns on their way to HBM at a time

Ref = Any  # an array in SMEM, VMEM or HBM, as Pallas gives it to the body of a kernel


class Refs(NamedTuple):
    """What the body of the kernel reads and writes; None: only where it writes columns.

    Queries, keys, values, starts and results have a row per query, or per group, of this step's
    groups. A row cannot be chosen at run time, so that they are first put into arrays by group.
    """

    first_item: Ref  # of the schedule, in SMEM, as all up to `end`
    group: Ref
    block: Ref
    source: Ref
    first_block: Ref
    end: Ref
    seen: Ref  # [groups, M, LANES]
    q: Ref  # [groups * M, K * H]
    k: Ref | None  # [groups, K * H]
    v: Ref | None  # [groups, K * H]
    start: Ref | None  # [groups * M, lanes] as `PartShape` describes it
    cache: Ref  # [R, K, S, W] in HBM
    result: Ref  # [groups * M, lanes], where columns are written K * H lanes
    written: Ref | None  # the cache as a result
    kv: Ref  # [2, K, BLOCK, W] the block being computed, and the next
    query: Ref  # [groups, K, M, width]
    acc: Ref  # [K, M, width] mix so far of the group being computed
    top: Ref  # [K, M, LANES] maximum so far, in all lanes
    total: Ref  # [K, M, LANES] sum so far, in all lanes
    of_groups: Ref  # [groups, M, lanes] results
    rows: Ref  # [groups * M, lanes] results, before they are rounded
    arrived: Ref  # semaphores of `kv`
    starts: Ref | None  # [groups, M, lanes]
    new: Ref | None  # [groups, K, 1, W] keys and values
    stage: Ref | None  # [WRITES, K, rows, W] tiles with new columns
    num_written: Ref | None  # [1] by this core
    left: Ref | None  # semaphores of `stage`


def run_step(shape: Shape, head_dim: int, rule: AttentionRule, writes: bool, *refs: Ref) -> None:
    """One step of the grid. If it writes columns, a sequence of the cache is a page."""
    if not writes:  # neither keys, values and starts nor the cache as a result
        refs = (*refs[:8], *[None] * 3, *refs[8:10], None, *refs[10:], *[None] * 5)
    ref = Refs._make(refs)
    core, part = pl.program_id(0), pl.program_id(1)
    step = core * shape.parts + part
    core_begin = ref.first_item[core * shape.parts]
    core_end = ref.first_item[(core + 1) * shape.parts]

    def copy(i: jax.Array, act: Callable[[Any], None]) -> None:
        """Starts or awaits the copy of an item: the columns that are seen, in whole PIECEs."""
        buffer, before = lax.rem(i, 2), ref.block[i] * BLOCK
        first = 0 if writes else pl.multiple_of(before, BLOCK)
        seen = ref.end[ref.group[i]] - before

        def search(low: int, high: int) -> None:
            """Copies have fixed sizes: a binary search for that between `low` and `high`."""
            if high - low > PIECE:
                middle = (low + high) // 2
                lax.cond(seen <= middle, lambda: search(low, middle), lambda: search(middle, high))
                return
            columns = ref.cache.at[ref.source[i], :, pl.ds(first, high)]
            target = ref.kv.at[buffer, :, pl.ds(0, high)]
            act(pltpu.make_async_copy(columns, target, ref.arrived.at[buffer]))

        search(0, BLOCK)

    @pl.when(part == 0)
    def _():
        if ref.num_written is not None:
            ref.num_written[0] = 0
        # Weights of 0 do not hide what is not a number in memory that no copy has filled yet.
        ref.kv[...] = jnp.zeros_like(ref.kv)
        pl.when(core_begin < core_end)(lambda: copy(core_begin, _start))

    _unpack(ref, head_dim)
    if writes:
        _unpack_rest(ref, head_dim)

    def item(i: jax.Array, _: None) -> None:
        group, block = ref.group[i], ref.block[i]
        here = group - step * shape.groups
        pl.when(i + 1 < core_end)(lambda: copy(i + 1, _start))
        copy(i, _wait)
        pl.when(block == ref.first_block[group])(lambda: _begin(ref, here, head_dim))
        is_last = (block + 1) * BLOCK >= ref.end[group]
        if writes:
            pl.when(is_last)(lambda: _write(ref, i, here))
        _attend(ref, here, block, lax.rem(i, 2), head_dim, rule)
        store = _store_mix if writes else _store_part
        pl.when(is_last)(lambda: store(ref, here, head_dim))

    lax.fori_loop(ref.first_item[step], ref.first_item[step + 1], item, None)
    _pack(ref)
    if writes:
        pl.when(part == shape.parts - 1)(lambda: _finish_writes(ref))


def _start(transfer: Any) -> None:
    transfer.start()


def _wait(transfer: Any) -> None:
    transfer.wait()


def _of_head(head: int, head_dim: int) -> slice:
    """The lanes of a head where heads lie one after the other."""
    return slice(head * head_dim, (head + 1) * head_dim)


def _in_width(x: jax.Array, width: int) -> jax.Array:
    """The lanes of x as the first of `width`, before zeros."""
    if x.shape[1] == width:
        return x
    return jnp.concatenate([x, jnp.zeros((x.shape[0], width - x.shape[1]), x.dtype)], axis=1)


def _rows_of(group: int, ref: Refs) -> slice:
    """The rows of a group where those of all groups lie one after the other."""
    num_queries = ref.acc.shape[1]
    return slice(group * num_queries, (group + 1) * num_queries)


def _unpack(ref: Refs, head_dim: int) -> None:
    """Puts queries into arrays by group, in float32, whose rows and lanes can be moved; and nothing
    into results."""
    groups, heads, _, width = ref.query.shape
    q = ref.q[...].astype(jnp.float32)
    for group in range(groups):
        for head in range(heads):
            query = q[_rows_of(group, ref), _of_head(head, head_dim)]
            ref.query[group, head] = _in_width(query, width)
    nothing = jnp.zeros(ref.of_groups.shape, jnp.float32)
    if ref.start is None:
        lane = lax.broadcasted_iota(jnp.int32, nothing.shape, 2)
        head = lane - part_shape(heads, head_dim).stats
        nothing = jnp.where((head >= 0) & (head < heads), EMPTY, nothing)
    ref.of_groups[...] = nothing


def _unpack_rest(ref: Refs, head_dim: int) -> None:
    """The same for keys, values and starts."""
    assert ref.k is not None and ref.v is not None and ref.new is not None
    assert ref.start is not None and ref.starts is not None
    k, v = ref.k[...].astype(jnp.float32), ref.v[...].astype(jnp.float32)
    for group in range(ref.new.shape[0]):
        ref.starts[group] = ref.start[_rows_of(group, ref)]
        for head in range(ref.new.shape[1]):
            lanes = _of_head(head, head_dim)
            both = [x[group : group + 1, lanes] for x in (k, v)]
            ref.new[group, head] = jnp.concatenate(both, axis=1)


def _pack(ref: Refs) -> None:
    """The results of a step as rows, in their dtype."""
    for group in range(ref.of_groups.shape[0]):
        ref.rows[_rows_of(group, ref)] = ref.of_groups[group]
    ref.result[...] = ref.rows[...].astype(ref.result.dtype)


def _begin(ref: Refs, here: jax.Array, head_dim: int) -> None:
    """The part of a softmax that a group starts from."""
    if ref.starts is None:
        ref.acc[...] = jnp.zeros_like(ref.acc)
        ref.top[...] = jnp.full_like(ref.top, EMPTY)
        ref.total[...] = jnp.zeros_like(ref.total)
        return
    heads = ref.acc.shape[0]
    stats = part_shape(heads, head_dim).stats
    for head in range(heads):
        # Of a block that is used whole only the second half of a mix is read.
        ref.acc[head, :, -head_dim:] = ref.starts[here, :, _of_head(head, head_dim)]
        for x, lane in (ref.top, stats + head), (ref.total, stats + heads + head):
            x[head] = jnp.broadcast_to(ref.starts[here, :, lane : lane + 1], x.shape[1:])


def _attend(
    ref: Refs, here: jax.Array, block: jax.Array, buffer: jax.Array, head_dim: int,
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
        query = ref.query[here, head].astype(keys.dtype)
        products = lax.dot_general(
            query, keys, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
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


def _store_part(ref: Refs, here: jax.Array, head_dim: int) -> None:
    """Puts the part of the group that is computed among the results."""
    heads, num_queries, _ = ref.acc.shape
    for head in range(heads):
        ref.of_groups[here, :, _of_head(head, head_dim)] = ref.acc[head][:, -head_dim:]
    shape = part_shape(heads, head_dim)
    lane = lax.broadcasted_iota(jnp.int32, (num_queries, shape.lanes - shape.stats), 1)
    stats = jnp.zeros(lane.shape, jnp.float32)
    for head in range(heads):
        stats = jnp.where(lane == head, ref.top[head][:, :1], stats)
        stats = jnp.where(lane == heads + head, ref.total[head][:, :1], stats)
    ref.of_groups[here, :, shape.stats :] = stats


def _store_mix(ref: Refs, here: jax.Array, head_dim: int) -> None:
    """Puts the attention of the group that is computed among the results."""
    for head in range(ref.acc.shape[0]):
        total = ref.total[head][:, :1]
        mixed = ref.acc[head][:, -head_dim:] / jnp.where(total > 0, total, 1.0)
        ref.of_groups[here, :, _of_head(head, head_dim)] = mixed


def _write(ref: Refs, i: jax.Array, here: jax.Array) -> None:
    """Puts a group's new column into its last block, item i, and sends the tile that it lies in to
    HBM."""
    assert ref.new is not None and ref.written is not None and ref.stage is not None
    assert ref.num_written is not None and ref.left is not None
    buffer, rows = lax.rem(i, 2), ref.stage.shape[2]
    column = ref.end[ref.group[i]] - 1 - ref.block[i] * BLOCK
    first = pl.multiple_of(lax.div(column, rows) * rows, rows)
    tile = pl.ds(first, rows)
    row = lax.broadcasted_iota(jnp.int32, (1, rows, 1), 1)
    number = ref.num_written[0]
    place = lax.rem(number, WRITES)
    to_hbm = pltpu.make_async_copy(
        ref.stage.at[place], ref.written.at[ref.source[i], :, tile], ref.left.at[place]
    )
    # The tile that lay here before has the same size: waiting for one is waiting for the other.
    pl.when(number >= WRITES)(to_hbm.wait)
    new = ref.new[here].astype(ref.kv.dtype)
    with_new = jnp.where(row == column - first, new, ref.kv[buffer, :, tile])
    ref.kv[buffer, :, tile] = with_new
    ref.stage[place] = with_new
    to_hbm.start()
    ref.num_written[0] = number + 1


def _finish_writes(ref: Refs) -> None:
    """Waits for the last tiles of a core."""
    assert ref.written is not None and ref.stage is not None
    assert ref.num_written is not None and ref.left is not None
    tile = ref.written.at[0, :, pl.ds(0, ref.stage.shape[2])]
    for place in range(WRITES):
        to_hbm = pltpu.make_async_copy(ref.stage.at[place], tile, ref.left.at[place])
        pl.when(ref.num_written[0] > place)(to_hbm.wait)
