"""Who decodes what, decided on the host before a phase starts: sizes, shards, and order.

A load is a trunk with some of its branches; it goes through one row of one shard's window.
"""

import dataclasses
from collections.abc import Sequence

from vinejax.shapes import bucket

# Found by simulation with geometric lengths, 1 to 108 branches a trunk, 64 and 256 slots: slots are
# then busy in over 99 of 100 steps while branches wait.
LANES_A_SLOT = 2  # of all rows together: a slot then nearly always finds a row with a free lane
LONG_TAIL = 4  # the longest continuation against the mean: a row waits for its longest
SPARE_ROWS = 8  # that are running dry, or being loaded
SHARED_BY = 8  # branches of a trunk that may always be decoded at once


@dataclasses.dataclass(frozen=True)
class Load:
    """Branches of one trunk that one row serves, the longest expected first."""

    trunk: int
    items: list[int]  # indices of branches
    work: int  # the sum of their budgets
    first: int = 0  # of its items in the shard's queue


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Shapes of a phase, each a part of a compiled program."""

    slots: int  # S of a shard
    rows: int  # P
    group: int  # G
    columns: int  # T, of a row
    width: int  # W, of the ring
    queue: int  # Q
    batch: int  # trunks a prefill
    chunk: int  # decode steps of a call, at most
    blocks: int  # of the ring, each read only while it is alive
    ring: tuple[str, str]  # axes of a block of the ring's keys, and of its values: see `ring_axes`


def ring_blocks(width: int, platform: str) -> int:
    """Blocks of a ring: of 32 columns, but 8 at most.

    One on a GPU, where a condition inside a loop costs a round trip to the host.
    """
    return 1 if platform == "gpu" else max(1, min(8, width // 32))


def ring_axes(platform: str, slots: int, shares_heads: bool) -> tuple[str, str]:
    """The order of the axes (slots, kv heads, block columns, head width) of keys and values.

    A TPU has the column that a step writes outermost, and slots on its lanes if they fill them; it
    would copy the whole ring at the entry of the loop, and back, if it lay otherwise. On a CPU keys
    are faster turned where heads share them.
    """
    if platform == "tpu":
        axes = "bksh" if slots % 128 else "bkhs"
        return axes, axes
    return ("skhb" if platform == "cpu" and shares_heads else "skbh"), "skbh"


def window_shape(slots: int, trunks: int, branches: int) -> tuple[int, int]:
    """(P, G) that keep `slots` busy, for `branches` of `trunks` on one shard.

    A row holds its trunk until the longest of its branches has ended, LONG_TAIL times the mean, so
    the branches that are resident must be that many times the slots.
    """
    a_trunk = 1 << max(branches // trunks, 1).bit_length() - 1  # a power of 2, for few shapes
    wanted = min(LONG_TAIL * slots // a_trunk + SPARE_ROWS, 2 * slots, trunks)
    rows = bucket(wanted, least=2) if wanted > 1 else 1
    return rows, lanes(slots, rows, min(SHARED_BY, a_trunk))


def lanes(slots: int, rows: int, least: int = 1) -> int:
    """G, such that all rows together have LANES_A_SLOT lanes a slot; in whole fours."""
    group = -(-LANES_A_SLOT * slots // rows)
    return min(slots, max(group if group < 4 else -(-group // 4) * 4, least))


def assign(
    trunk_of: Sequence[int], budgets: Sequence[int], shards: int, rows: int
) -> list[list[Load]]:
    """The loads of each shard in order, the largest first. Branches without a budget have none.

    A trunk with much more work than a row's share is divided among several rows, and every shard
    gets about the same work: no row and no shard then outlasts the others.
    """
    by_trunk: dict[int, list[int]] = {}
    for i, trunk in enumerate(trunk_of):
        if budgets[i] > 0:
            by_trunk.setdefault(trunk, []).append(i)
    share = sum(budgets[i] for items in by_trunk.values() for i in items) / (shards * rows)
    loads = []
    for trunk, items in by_trunk.items():
        items.sort(key=lambda i: -budgets[i])
        work = sum(budgets[i] for i in items)
        # Rounded down on one shard, where there are then never more loads than rows for it.
        parts = int(work / share + (0.5 if shards > 1 else 0.0))
        parts = min(max(parts, 1), len(items))
        for part in range(parts):
            own = items[part::parts]
            loads.append(Load(trunk, own, sum(budgets[i] for i in own)))
    by_shard: list[list[Load]] = [[] for _ in range(shards)]
    totals, counts = [0] * shards, [0] * shards
    for load in sorted(loads, key=lambda load: -load.work):
        shard = totals.index(min(totals))
        by_shard[shard].append(dataclasses.replace(load, first=counts[shard]))
        totals[shard] += load.work
        counts[shard] += len(load.items)
    return by_shard
