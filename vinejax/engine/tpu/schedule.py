"""The grid of a decoding kernel, and the schedule of the blocks that it reads (`kernels.py`).

A group is a set of queries that read the same columns together: either those of one slot, which
read the slot's pages, or those of some lanes of a row, which read the row. Letters are those of
`kernels.py`: N groups, M queries of a group.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from vinejax.model.attention import LANES

BLOCK = 256  # columns that are computed at a time; a power of two
PIECE = 32  # columns of the shortest copy; a power of two, and whole tiles of every dtype
SUBLANES = 8  # rows of a register of 32-bit numbers
OPERAND_BYTES = 2**20  # bytes of queries and results in VMEM at a time; Pallas holds them twice


class Schedule(NamedTuple):
    """The blocks that a decode step reads in each layer with a certain attention rule.

    An item is here one of these blocks, and not a branch in the queue.
    """

    first_item: jax.Array  # i32[steps + 1] first item of each step of the kernel's grid
    group: jax.Array  # i32[items] group of the item; entries after first_item[-1] are padding
    block: jax.Array  # i32[items] number of the block within its group
    source: jax.Array  # i32[items] row or page that holds the block
    first_block: jax.Array  # i32[N] first live block of the group
    end: jax.Array  # i32[N] largest limit of the group's queries; 0 for a group without columns
    seen: jax.Array  # i32[N, M, LANES] `first` and `limit` of each query in the first two lanes


class PartShape(NamedTuple):
    """The layout of an array f32[.., lanes] that has the softmax part of one query per row.

    A lane is here an index of the last axis. The unnormalised mixes of the heads come first, one
    after the other. From lane `stats` on follow the maxima of the heads, then their sums. The array
    has no axis of heads, because XLA would copy an array with such an axis.
    """

    stats: int  # first lane of the maxima
    lanes: int  # number of lanes


def part_shape(heads: int, head_dim: int) -> PartShape:
    """The layout of softmax parts with `heads` KV heads."""
    stats = _whole_registers(heads * head_dim)
    return PartShape(stats, stats + _whole_registers(2 * heads))


def _whole_registers(lanes: int) -> int:
    return -(-lanes // LANES) * LANES


class Grid(NamedTuple):
    """The `cores` x `parts` steps of a kernel call, each of which computes `groups` groups.

    The last groups may be padding without queries.
    """

    cores: int  # number of cores of a device; each runs its own part of the groups
    parts: int  # steps per core
    groups: int  # groups per step

    @property
    def total(self) -> int:
        """The number of groups in all steps."""
        return self.cores * self.parts * self.groups


def grid_for(
    num_groups: int, queries: int, heads: int, head_dim: int, cores: int, least_rows: int
) -> Grid:
    """The grid with the least padding for `num_groups` groups of `queries` queries.

    `heads` is the number of KV heads. The kernel's arrays have at least `least_rows` rows per
    group. The rows of a step of the grid fill whole registers, unless a single step has all rows.
    """
    unit = SUBLANES // math.gcd(queries, SUBLANES)
    part = part_shape(heads, head_dim)
    # Lanes per query: the query, its mix, its softmax part, and the bounds of its columns.
    lanes = 2 * part.stats + part.lanes + LANES
    max_groups = max(OPERAND_BYTES // (4 * queries * lanes), SUBLANES)

    def grid(groups: int) -> Grid:
        return Grid(cores, -(-num_groups // (cores * groups)), groups)

    def can_be(groups: int) -> bool:
        return groups * least_rows % SUBLANES == 0 or grid(groups).total == groups

    sizes = filter(can_be, range(unit, max_groups + 1, unit))
    return grid(min(sizes, key=lambda groups: (grid(groups).total, -groups)))


def make_schedule(
    first: Int[Array, "N M"],
    limit: Int[Array, "N M"],
    sources: Int[Array, "N blocks"],
    grid: Grid,
    max_items: int | None = None,
) -> Schedule:
    """The live blocks of groups whose queries see columns `first` .. `limit` - 1.

    `sources` are the rows or pages that hold the blocks of each group. At most `max_items` blocks
    are live; if it is None, all blocks of all groups may be live.
    """
    num_groups, num_blocks = sources.shape
    first, limit = (jnp.pad(x, ((0, grid.total - num_groups), (0, 0))) for x in (first, limit))
    sees = limit > first
    end = jnp.max(jnp.where(sees, limit, 0), axis=1)
    begin = jnp.min(jnp.where(sees, first, num_blocks * BLOCK), axis=1)
    first_block = jnp.where(end > 0, begin // BLOCK, 0)
    blocks = -(-end // BLOCK) - first_block
    num_items = num_groups * num_blocks
    if max_items is not None:
        num_items = min(max_items, num_items)
    group = jnp.repeat(jnp.arange(grid.total), blocks, total_repeat_length=num_items)
    after = jnp.cumsum(blocks)
    block = jnp.arange(num_items) - (after - blocks)[group] + first_block[group]
    past = after[grid.groups - 1 :: grid.groups]
    first_item = jnp.concatenate([jnp.zeros(1, after.dtype), past])
    pairs = jnp.stack([first, limit], axis=-1)
    seen = jnp.pad(pairs, ((0, 0), (0, 0), (0, LANES - 2)))
    numbers = (first_item, group, block, sources[group, block], first_block, end, seen)
    return Schedule(*(x.astype(jnp.int32) for x in numbers))
