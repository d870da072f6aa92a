"""The division of a call of the decoding kernel, and the blocks that it reads (`kernels.py`).

A group is a slot with its own tokens, or a row of the window with the slots that read it. Letters
as in `kernels.py`: N groups, M queries of a group.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from vinejax.model.attention import LANES

BLOCK = 256  # columns that are computed at a time; a power of two
PIECE = 32  # columns of the shortest copy, a power of two; whole tiles of every dtype
SUBLANES = 8  # rows of a register of 32-bit numbers
OPERAND_BYTES = 2**20  # of queries and results in VMEM at a time; Pallas holds them twice


class Schedule(NamedTuple):
    """The blocks that a step reads, for all layers with the same window. An item is one block."""

    first_item: jax.Array  # i32[steps + 1] of each step of the kernel's grid
    group: jax.Array  # i32[items] of an item; those after first_item[-1] mean nothing
    block: jax.Array  # i32[items] which block of the group's columns
    source: jax.Array  # i32[items] the sequence of the cache that holds it: a row, or a page
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
    """How a call of the kernel is divided: `cores` x `parts` steps of `groups` groups each.

    Those beyond the number of groups of the call have no queries.
    """

    cores: int  # of one device; each runs its own part of the groups
    parts: int
    groups: int

    @property
    def total(self) -> int:
        """Groups of all steps."""
        return self.cores * self.parts * self.groups


def shape_of(num_groups: int, queries: int, heads: int, head_dim: int, cores: int) -> Shape:
    """The division of a call with this many groups of `queries` queries for `heads` KV heads.

    The queries of a step fill whole registers, as arrays have one row per query.
    """
    unit = SUBLANES // math.gcd(queries, SUBLANES)
    part = part_shape(heads, head_dim)
    numbers = queries * (
        2 * part.stats + part.lanes + LANES
    )  # queries, mixes, a part, what is seen
    most = max(OPERAND_BYTES // (4 * numbers), unit)

    def shape(groups: int) -> Shape:
        return Shape(cores, -(-num_groups // (cores * groups)), groups)

    sizes = range(unit, most + 1, unit)
    return shape(min(sizes, key=lambda groups: (shape(groups).total, -groups)))


def make_schedule(
    first: Int[Array, "N M"],
    limit: Int[Array, "N M"],
    sources: Int[Array, "N blocks"],
    shape: Shape,
    most: int | None = None,
) -> Schedule:
    """The live blocks of groups whose queries see columns `first` .. `limit` - 1.

    `sources` are the sequences of the cache that hold the blocks of each group, `most` is how many
    blocks there can be (None: all of all groups).
    """
    num_groups, num_blocks = sources.shape
    first, limit = (jnp.pad(x, ((0, shape.total - num_groups), (0, 0))) for x in (first, limit))
    sees = limit > first
    end = jnp.max(jnp.where(sees, limit, 0), axis=1)
    begin = jnp.min(jnp.where(sees, first, num_blocks * BLOCK), axis=1)
    first_block = jnp.where(end > 0, begin // BLOCK, 0)
    blocks = -(-end // BLOCK) - first_block
    most = num_groups * num_blocks if most is None else min(most, num_groups * num_blocks)
    group = jnp.repeat(jnp.arange(shape.total), blocks, total_repeat_length=most)
    after = jnp.cumsum(blocks)
    block = jnp.arange(most) - (after - blocks)[group] + first_block[group]
    past = after[shape.groups - 1 :: shape.groups]
    first_item = jnp.concatenate([jnp.zeros(1, after.dtype), past])
    pairs = jnp.stack([first, limit], axis=-1)
    seen = jnp.pad(pairs, ((0, 0), (0, 0), (0, LANES - 2)))
    numbers = (first_item, group, block, sources[group, block], first_block, end, seen)
    return Schedule(*(x.astype(jnp.int32) for x in numbers))
