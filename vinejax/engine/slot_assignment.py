"""The host's plan of a phase: rows and lanes, and the branches that each shard decodes, in order.

A load is a trunk with some of its branches, which one row of one shard's window serves.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vinejax.core.shapes import bucket
from vinejax.engine.branches import BranchSet

# Found by simulation with geometric lengths, 1 to 108 branches per trunk, 64 and 256 slots: slots
# are then busy in over 99 of 100 steps while branches wait.
LANES_PER_SLOT = 2  # over all rows: a slot then nearly always finds a row with a free lane
LONG_TAIL = 4  # length of the longest continuation / mean length: a row waits for its longest
SPARE_ROWS = 8  # rows that have few items left, or are being loaded
SHARED_BY = 8  # branches of a trunk that may always be decoded at once


@dataclasses.dataclass(frozen=True)
class RowJob:
    """Branches of one trunk that one row serves, those with the largest budgets first."""

    trunk: int
    items: list[int]  # indices of branches
    work: int  # the sum of their budgets
    first: int = 0  # index of its first item in the shard's queue


def window_shape(slots: int, trunks: int, branches: int) -> tuple[int, int]:
    """Rows and lanes per row that keep the `slots` of a shard busy with `branches` on `trunks`.

    A row stays occupied until its longest branch ends, which takes about LONG_TAIL times the mean.
    On average one in LONG_TAIL branches of the resident trunks is then being decoded, so the rows
    should hold LONG_TAIL times as many branches as there are slots.
    """
    # Rounded down to a power of 2, so that few shapes are compiled.
    branches_per_trunk = 1 << max(branches // trunks, 1).bit_length() - 1
    wanted = min(LONG_TAIL * slots // branches_per_trunk + SPARE_ROWS, 2 * slots, trunks)
    rows = bucket(wanted, least=2) if wanted > 1 else 1
    return rows, lanes_per_row(slots, rows, min(SHARED_BY, branches_per_trunk))


def lanes_per_row(slots: int, rows: int, min_lanes: int = 1) -> int:
    """Lanes per row, LANES_PER_SLOT per slot over all rows; from 4 on a multiple of 4."""
    lanes = -(-LANES_PER_SLOT * slots // rows)
    if lanes >= 4:
        lanes = -(-lanes // 4) * 4
    return min(slots, max(lanes, min_lanes))


class StartedPhase(NamedTuple):
    """What a phase has already when further work is assigned to its shards."""

    items: Sequence[int]  # of each shard's queue
    work: Sequence[int]  # that each shard has left: the sum of budgets
    total: int  # work of the whole phase
    shard_of: Mapping[int, int]  # of trunks that are bound to a shard


def assign(
    branch_set: BranchSet, shards: int, rows: int, begun: StartedPhase | None = None
) -> list[list[RowJob]]:
    """The loads of each shard; branches without a budget are left out.

    Scored trunks without a branch have loads of no items. `begun`: the loads join those of a phase
    that runs.

    Loads with the largest sums of budgets come first, to a factor of 2, and among these the longest
    trunks, so that trunks which are prefilled together need little padding.

    A trunk with at least twice (with several shards 1.5 times) the mean sum of all rows is divided
    into several loads, and every shard gets about the same sum, so that no row and no shard takes
    much longer than the others.
    """
    budgets, lengths = branch_set.budgets, [len(trunk) for trunk in branch_set.trunks]
    by_trunk: dict[int, list[int]] = {}
    for i, branch in enumerate(branch_set.branches):
        if budgets[i] > 0:
            by_trunk.setdefault(branch.trunk, []).append(i)
    begun = begun or StartedPhase([0] * shards, [0] * shards, sum(n for n in budgets if n > 0), {})
    share = begun.total / (shards * rows)
    jobs = []
    for trunk, items in by_trunk.items():
        items.sort(key=lambda i: -budgets[i])
        total = sum(budgets[i] for i in items)
        # Rounded down on one shard, so that there are seldom more loads than rows.
        parts = int(total / share + (0.5 if shards > 1 else 0.0))
        parts = min(max(parts, 1), len(items))
        for part in range(parts):
            items_of_part = items[part::parts]
            jobs.append(RowJob(trunk, items_of_part, sum(budgets[i] for i in items_of_part)))
    by_shard: list[list[RowJob]] = [[] for _ in range(shards)]
    totals = [*begun.work]
    for job in sorted(jobs, key=lambda job: -job.work):
        shard = begun.shard_of.get(job.trunk, totals.index(min(totals)))
        by_shard[shard].append(job)
        totals[shard] += job.work
    ordered = [
        _in_order(of_shard, lengths, first)
        for of_shard, first in zip(by_shard, begun.items, strict=True)
    ]
    only_scored = set(np.flatnonzero(branch_set.scored).tolist()) - by_trunk.keys()
    for n, i in enumerate(sorted(only_scored, key=lambda i: -lengths[i])):
        ordered[n % shards].append(RowJob(i, [], 0))
    return ordered


def _in_order(jobs: list[RowJob], lengths: Sequence[int], first: int) -> list[RowJob]:
    """A shard's loads in the order in which they enter its window and, from `first`, its queue."""
    ordered = []
    for job in sorted(jobs, key=lambda x: (-x.work.bit_length(), -lengths[x.trunk])):
        ordered.append(dataclasses.replace(job, first=first))
        first += len(job.items)
    return ordered
