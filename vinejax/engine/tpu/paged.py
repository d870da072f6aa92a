"""The paged cache, in which each slot has columns of its own in pages that kernels access.

A slot that has drawn `age` tokens writes column `age` and sees the columns up to that one. Slots
take pages as their branches grow, and return them when the branches end (`pages.py`).
"""

import dataclasses
import math

import jax
from jaxtyping import Array, Bool, Int

from vinejax.engine.cache import Allocator, Attend, Cache, DecodeStep, Sizes, Storage
from vinejax.engine.layout import WINDOW, JoinedKV
from vinejax.engine.row_jobs import LONG_TAIL
from vinejax.engine.split import SHARDS
from vinejax.engine.tpu.pages import Pages, give_back, take_pages
from vinejax.engine.tpu.ragged import RaggedAttention
from vinejax.engine.tpu.schedule import BLOCK, PIECE
from vinejax.model.sharding import platform_of

POOL_SIZES = 16  # possible sizes of a pool; few, so that a little less memory compiles nothing


@dataclasses.dataclass(frozen=True)
class PagedStorage(Storage):
    """A pool of pages of BLOCK columns, which the slots of a shard share."""

    pages: int = 0  # number per shard; 0 before it is known

    read_by_kernel = True

    def align(self, columns: int) -> int:
        return -(-columns // BLOCK) * BLOCK

    def slot_bytes(self, slots: int, width: int, column_bytes: int) -> int:
        """The bytes per slot of the smallest pool for `slots` slots (the function `min_pages`)."""
        return -(-column_bytes * BLOCK * min_pages(slots, width) // slots)

    def fitted(self, slots: int, width: int, room: int) -> "PagedStorage":
        """A pool for all columns of the slots, or a smaller one if `room` is too small.

        The size of a smaller pool is rounded down to one of a few sizes. But the pool has at least
        as many pages as the function `min_pages` returns, if there is room for them.
        """
        room = room // BLOCK
        whole = slots * (width // BLOCK)
        if room >= whole:
            return PagedStorage(whole)
        unit = max(whole // POOL_SIZES, 1)
        return PagedStorage(max(room // unit * unit, min(min_pages(slots, width), room)))

    def columns(self, slots: int, width: int) -> int:
        return self.pages * BLOCK

    def window_layer(self, new: Allocator, sizes: Sizes) -> JoinedKV:
        return JoinedKV(new.cache(WINDOW, sizes.rows, sizes.columns, per_head=2))

    def empty(self, new: Allocator, sizes: Sizes) -> "PagedCache":
        pool = [
            JoinedKV(new.cache(WINDOW, self.pages, BLOCK, per_head=2))
            for _ in range(new.model.cfg.num_layers)
        ]
        pages = Pages(
            of_slot=new.numbers(sizes.slots, sizes.width // BLOCK),
            free=new.counted(self.pages),
            num_free=new.numbers(1, value=self.pages),
        )
        device = new.mesh.devices.flat[0]
        cores = getattr(device, "num_cores", 1)  # 2 for a v4 or v5p chip, which is one device
        return PagedCache(pool, pages, cores, interpret=platform_of(new.mesh) == "cpu")

    def drain_rows(self, sizes: Sizes, slots: int) -> int:
        """The number of all rows. No row is left out, as a row that no slot reads costs nothing."""
        return sizes.rows

    def drain_columns(self, sizes: Sizes, drain: Sizes) -> int:
        return 0

    def columns_read(self, seen: float, columns: int) -> float:
        """The sum of `seen` and PIECE / 2, but at most `columns`.

        Columns are read in pieces of PIECE columns, so on average PIECE / 2 invisible columns are
        read, too.
        """
        return min(seen + PIECE / 2, columns)

    def usable_slots(self, sizes: Sizes, mean_tokens: float) -> int:
        return min(sizes.slots, int(self.pages / held_pages(mean_tokens, sizes.width)))

    def smallest(self, sizes: Sizes) -> "PagedStorage":
        return PagedStorage(min(self.pages, min_pages(sizes.slots, sizes.width)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PagedCache(Cache):
    """The pool and the pages of one shard or of all shards.

    In a cache of all shards, each array has the entries of all shards, one shard after the other.
    """

    layers: list[JoinedKV]  # pool per layer
    pages: Pages
    cores: int = dataclasses.field(metadata=dict(static=True))  # number per device
    interpret: bool = dataclasses.field(metadata=dict(static=True))  # on a CPU, for tests

    @jax.named_scope("pages")
    def reserve(
        self, occupied: Bool[Array, " B"], age: Int[Array, " B"]
    ) -> tuple["PagedCache", Bool[Array, " B"]]:
        """Gives a page to slots that begin a block. If too few are free, some slots must wait."""
        pages, waits = take_pages(self.pages, occupied, age)
        return dataclasses.replace(self, pages=pages), waits

    def attention(self, step: DecodeStep) -> Attend:
        return RaggedAttention(step, self.pages, self.cores, self.interpret).attend

    def give_back(self, ended: Bool[Array, " B"], age: Int[Array, " B"]) -> "PagedCache":
        return dataclasses.replace(self, pages=give_back(self.pages, ended, age))

    def specs(self, slots: int) -> "PagedCache":
        pool = jax.tree.map(lambda _: WINDOW.spec, self.layers)
        pages = jax.tree.map(lambda _: SHARDS, self.pages)
        return dataclasses.replace(self, layers=pool, pages=pages)

    def movable(self) -> "PagedCache":
        """The cache without the pool, because a program that returned the pool would copy it."""
        return dataclasses.replace(self, layers=[])

    def take(self, slots: Int[Array, " M"]) -> "PagedCache":
        pages = self.pages._replace(of_slot=self.pages.of_slot[slots])
        return dataclasses.replace(self, pages=pages)

    def with_moved(self, moved: Cache) -> "PagedCache":
        assert isinstance(moved, PagedCache)
        return dataclasses.replace(moved, layers=self.layers)


def held_pages(mean_tokens: float, width: int) -> float:
    """The expected number of pages that a busy slot holds.

    The lengths of branches are taken to be exponentially distributed, up to `width`.
    """
    return min(1 / -math.expm1(-BLOCK / mean_tokens), width // BLOCK)


def min_pages(slots: int, width: int) -> int:
    """The fewest pages of a pool for `slots` slots of up to `width` columns.

    All slots together hold about this number if branches have width / LONG_TAIL tokens on average,
    as all shapes of a phase assume. The pool has at least the pages that a single slot can hold.
    """
    return max(math.ceil(slots * held_pages(width / LONG_TAIL, width)), width // BLOCK)
