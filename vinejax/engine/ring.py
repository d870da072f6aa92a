"""The ring, a cache with columns that all slots share, which XLA reads.

In a step all slots write the same column, whose number is the step modulo the width. A slot
that has drawn `age` tokens sees the age + 1 newest columns. The columns are divided into blocks.
Each block is a separate array, so that a step can skip a block of which no slot sees a column.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from vinejax.engine.cache import Allocator, Attend, Cache, DecodeStep, Sizes, Storage
from vinejax.engine.layout import WINDOW, CacheLayout, SeparateKV
from vinejax.engine.shared_attention import (
    HeadQueries,
    Part,
    join,
    merge,
    softmax_part,
    trunk_part,
)
from vinejax.model.attention import AttentionRule


class RingLayout(NamedTuple):
    """The layouts of a ring's blocks."""

    keys: CacheLayout
    values: CacheLayout


class RingLayer(NamedTuple):
    """The blocks of one layer, in the ring's layout.

    Each block has a part of the ring's columns, for all slots.
    """

    keys: list[jax.Array]
    values: list[jax.Array]


@dataclasses.dataclass(frozen=True)
class RingStorage(Storage):
    """The static part of a ring, from which the ring's blocks and layouts follow."""

    platform: str
    shares_heads: bool  # whether several query heads share keys and values

    @property
    def on_cpu(self) -> bool:
        return self.platform == "cpu"

    def layout(self, slots: int) -> RingLayout:
        """The fastest layout for this many slots per shard.

        On a TPU the columns are outermost. The slots are innermost if their number is a multiple of
        128. With another order the whole ring would be copied at the loop's beginning and end. On a
        CPU transposed keys are faster if query heads share them.
        """
        if self.platform == "tpu":
            layout = CacheLayout("skbh" if slots % 128 else "skhb")
            return RingLayout(layout, layout)
        return RingLayout(self.window_keys, WINDOW)

    @property
    def window_keys(self) -> CacheLayout:
        """The layout of a window's keys and, except on TPUs, of a ring's keys."""
        return CacheLayout("bkhs") if self.platform == "cpu" and self.shares_heads else WINDOW

    def window_layer(self, new: Allocator, sizes: Sizes) -> SeparateKV:
        layouts = self.window_keys, WINDOW
        keys, values = (new.cache(layout, sizes.rows, sizes.columns) for layout in layouts)
        return SeparateKV(keys, values, self.window_keys)

    def empty(self, new: Allocator, sizes: Sizes) -> "Ring":
        num_blocks = ring_blocks(sizes.width, self.platform)
        layout, columns = self.layout(sizes.slots), sizes.width // num_blocks

        def blocks(layout: CacheLayout) -> list[jax.Array]:
            return [new.cache(layout, sizes.slots, columns) for _ in range(num_blocks)]

        num_layers = new.model.cfg.num_layers
        layers = [RingLayer(*map(blocks, layout)) for _ in range(num_layers)]
        return Ring(layers, self, sizes.slots)

    def drain_rows(self, sizes: Sizes, slots: int) -> int:
        return min(sizes.rows, slots)

    def drain_columns(self, sizes: Sizes, drain: Sizes) -> int:
        copied = drain.rows if drain.rows < sizes.rows else 0
        return copied * drain.columns + drain.slots * drain.width


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ring(Cache):
    """The ring of one shard or of all shards.

    In a ring of all shards, the slots of all shards follow one another on one axis.
    """

    layers: list[RingLayer]
    storage: RingStorage = dataclasses.field(metadata=dict(static=True))
    slots: int = dataclasses.field(metadata=dict(static=True))  # per shard

    @property
    def layout(self) -> RingLayout:
        return self.storage.layout(self.slots)

    def reserve(
        self, occupied: Bool[Array, " B"], age: Int[Array, " B"]
    ) -> tuple["Ring", Bool[Array, " B"]]:
        """The same ring, and False for all slots.

        No slot waits, because every slot has as many columns as the largest budget.
        """
        return self, jnp.zeros_like(occupied)

    def attention(self, step: DecodeStep) -> Attend:
        layout, queries = self.layout, step.queries

        def attend(
            q: HeadQueries, k: Float[Array, "B 1 K H"], v: Float[Array, "B 1 K H"],
            trunks: SeparateKV, ring: RingLayer, rule: AttentionRule,
        ) -> tuple[HeadQueries, RingLayer]:  # fmt: skip
            keys = write_column(ring.keys, step.number, k, layout.keys)
            values = write_column(ring.values, step.number, v, layout.values)
            mixed = merge(
                trunk_part(q, trunks, step.lanes, rule),
                ring_part(q, keys, values, step.number, queries.age, rule, layout),
            )
            return mixed, RingLayer(keys, values)

        return attend

    def specs(self, slots: int) -> "Ring":
        layout = self.storage.layout(slots)

        def spec(layer: RingLayer) -> RingLayer:
            keys = jax.tree.map(lambda _: layout.keys.spec, layer.keys)
            values = jax.tree.map(lambda _: layout.values.spec, layer.values)
            return RingLayer(keys, values)

        return dataclasses.replace(self, layers=list(map(spec, self.layers)), slots=slots)

    def take(self, slots: Int[Array, " M"]) -> "Ring":
        old, new = self.layout, self.storage.layout(len(slots))

        def taken(layer: RingLayer) -> RingLayer:
            keys = [old.keys.to(new.keys, old.keys.take(x, slots)) for x in layer.keys]
            values = [old.values.to(new.values, old.values.take(x, slots)) for x in layer.values]
            return RingLayer(keys, values)

        return dataclasses.replace(self, layers=list(map(taken, self.layers)), slots=len(slots))


def ring_blocks(width: int, platform: str) -> int:
    """The number of blocks of a ring, which has one block per 32 of its `width` columns.

    The number is at least 1 and at most 8. On a GPU there is one block, since a condition in a loop
    costs a round trip to the host.
    """
    return 1 if platform == "gpu" else max(1, min(8, width // 32))


@jax.named_scope("write")
def write_column(
    ring: list[jax.Array], step: Int[Array, ""], x: Float[Array, "B 1 K H"], layout: CacheLayout
) -> list[jax.Array]:
    """The ring with the new key or value of every slot in the current column.

    One column of every block is written. Blocks other than the current one get their own old column
    again, because choosing the block at run time would copy all blocks.
    """
    axis = layout.column_axis
    block = ring[0].shape[axis]
    column = step % (block * len(ring))
    new = layout.column(x).astype(ring[0].dtype)
    place = [jnp.int32(0)] * 4
    place[axis] = column % block
    written = []
    for n, old in enumerate(ring):
        old_column = lax.dynamic_slice(old, place, new.shape)
        new_column = jnp.where(column // block == n, new, old_column)
        written.append(lax.dynamic_update_slice(old, new_column, place))
    return written


@jax.named_scope("ring")
def ring_part(
    q: HeadQueries,
    keys: list[jax.Array],  # blocks of the ring
    values: list[jax.Array],
    step: Int[Array, ""],
    age: Int[Array, " B"],
    rule: AttentionRule,
    layout: RingLayout,
) -> Part:
    """The softmax part over the columns of the last `age + 1` steps, for each slot.

    A block of which no slot sees a column is not read. Blocks are separate arrays because a slice
    of one array would be copied before it is read; `lax.cond` reads an array in place.
    """
    B, K, G, H = q.shape
    block = values[0].shape[layout.values.column_axis]
    width = block * len(keys)
    if rule.window is not None:
        age = jnp.minimum(age, rule.window - 1)
    oldest = jnp.max(age)
    empty = jnp.zeros((B, K, G, 1), jnp.float32)
    part = jnp.zeros((B, K, G, H), jnp.float32), empty - jnp.inf, empty
    for n, (k, v) in enumerate(zip(keys, values, strict=True)):
        column_age = (step - n * block - jnp.arange(block)) % width

        def read(part: Part, k: jax.Array, v: jax.Array, column_age: jax.Array = column_age):
            products = layout.keys.products(q, k)
            seen = (column_age <= age[:, None])[:, None, None]
            scores = jnp.where(seen, rule.scores(products), -jnp.inf)
            return join(part, softmax_part(scores, layout.values, v))

        if len(keys) == 1:
            return read(part, k, v)
        is_seen = jnp.any(column_age <= oldest)
        part = lax.cond(is_seen, read, lambda part, k, v: part, part, k, v)
    return part
