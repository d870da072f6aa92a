"""Plans a phase on the host: its rows and lanes, and the row jobs of each shard in their order.

A row job is a trunk with some of its branches. One row of one shard's window serves it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vinejax.core.shapes import bucket
from vinejax.engine.branches import BranchSet

# Values from simulations with geometric lengths, 1 to 108 branches per trunk, and 64 and 256 slots:
# slots are busy in over 99 of 100 steps while branches wait.
LANES_PER_SLOT = 2  # over all rows, so that a slot nearly always finds a row with a free lane
LONG_TAIL = 4  # longest length / mean length of continuations; a row waits for its longest
SPARE_ROWS = 8  # rows with few items left and rows that are being filled
SHARED_BY = 8  # branches of one trunk that can always be decoded at once


@dataclasses.dataclass(frozen=True)
class RowJob:
    """Branches that share a trunk and a row, in decreasing order of their budgets."""

    trunk: int
    items: list[int]  # branch numbers
    work: int  # sum of the branches' budgets
    first: int = 0  # index of the first item in the shard's queue


def window_shape(slots: int, trunks: int, branches: int) -> tuple[int, int]:
    """The number of rows and of lanes per row that keep a shard's `slots` busy.

    The phase has this many `branches` on this many `trunks`. A row stays occupied until its longest
    branch ends, which takes about LONG_TAIL times the mean length. On average one in LONG_TAIL
    branches of the resident trunks is being decoded. The rows should therefore hold LONG_TAIL times
    as many branches as there are slots.
    """
    # A power of 2, rounded down, so that few shapes are compiled. Few branches per trunk count as
    # 2, because their number varies over a run, and 4 would take as many lanes in fewer rows.
    branches_per_trunk = 1 << max(branches // trunks, 1).bit_length() - 1
    if 2 < branches_per_trunk < SHARED_BY:
        branches_per_trunk = 2
    wanted = min(LONG_TAIL * slots // branches_per_trunk + SPARE_ROWS, 2 * slots, trunks)
    rows = bucket(wanted, least=2) if wanted > 1 else 1
    return rows, lanes_per_row(slots, rows, min(SHARED_BY, branches_per_trunk))


def lanes_per_row(slots: int, rows: int, min_lanes: int = 1) -> int:
    """The number of lanes per row that gives about LANES_PER_SLOT lanes per slot.

    The lanes of all rows are counted together. A row has at least `min_lanes` lanes, but not more
    lanes than there are slots.
    """
    lanes = -(-LANES_PER_SLOT * slots // rows)
    if lanes >= 4:
        lanes = -(-lanes // 4) * 4
    return min(slots, max(lanes, min_lanes))


class StartedPhase(NamedTuple):
    """The state of a phase to which further branches are assigned. Work is a sum of budgets."""

    items: Sequence[int]  # number of items in each shard's queue
    work: Sequence[int]  # remaining work of each shard
    shard_of: Mapping[int, int]  # shard that holds keys of the trunk, for trunks that have one


def assign(
    branch_set: BranchSet,
    shards: int,
    rows: int,
    phase: StartedPhase | None = None,
    row_per_branch: bool = False,
) -> list[list[RowJob]]:
    """The jobs of each shard, in the order in which they enter rows.

    Branches without a budget are left out. A scored trunk without a branch has a job of no items.
    If `phase` is given, the jobs are added to that phase, which has begun. A job then goes to the
    shard in `phase.shard_of`, unless this shard has more than twice the work of another shard and
    SHARED_BY such jobs in addition.

    Jobs with the most work come first, where work counts as equal within a power of 2. Among equal
    jobs the longest trunks come first, so that trunks in one prefill need little padding.

    A trunk with at least twice the mean work of a row (1.5 times with several shards) is divided
    into several jobs; with `row_per_branch` every branch has a job of its own. Every shard gets
    about the same work, so that no row and no shard takes much longer than the others.
    """
    budgets, lengths = branch_set.budgets, [len(trunk) for trunk in branch_set.trunks]
    by_trunk: dict[int, list[int]] = {}
    for i, branch in enumerate(branch_set.branches):
        if budgets[i] > 0:
            by_trunk.setdefault(branch.trunk, []).append(i)
    if phase is None:
        phase = StartedPhase([0] * shards, [0] * shards, {})
    share = sum(n for n in budgets if n > 0) / (shards * rows)
    jobs = []
    for trunk, items in by_trunk.items():
        items.sort(key=lambda i: -budgets[i])
        parts = len(items)
        if not row_per_branch:
            total = sum(budgets[i] for i in items)
            # Rounded down on one shard, so that there are seldom more jobs than rows.
            rounded = int(total / share + (0.5 if shards > 1 else 0.0))
            parts = min(max(rounded, 1), parts)
        for part in range(parts):
            items_of_part = items[part::parts]
            jobs.append(RowJob(trunk, items_of_part, sum(budgets[i] for i in items_of_part)))
    by_shard: list[list[RowJob]] = [[] for _ in range(shards)]
    totals = [*phase.work]
    for job in sorted(jobs, key=lambda job: -job.work):
        least = totals.index(min(totals))
        shard = phase.shard_of.get(job.trunk, least)
        # Computing a trunk again costs less than shards that idle beside a busy one.
        if totals[shard] > 2 * totals[least] + SHARED_BY * job.work:
            shard = least
        by_shard[shard].append(job)
        totals[shard] += job.work
    ordered = [
        _in_order(of_shard, lengths, first)
        for of_shard, first in zip(by_shard, phase.items, strict=True)
    ]
    only_scored = set(np.flatnonzero(branch_set.scored).tolist()) - by_trunk.keys()
    for n, i in enumerate(sorted(only_scored, key=lambda i: -lengths[i])):
        ordered[n % shards].append(RowJob(i, [], 0))
    return ordered


def _in_order(jobs: list[RowJob], lengths: Sequence[int], first: int) -> list[RowJob]:
    """A shard's jobs in the order in which they enter rows.

    `first` is the index in the queue of the first item of the first job.
    """
    ordered = []
    for job in sorted(jobs, key=lambda x: (-x.work.bit_length(), -lengths[x.trunk])):
        ordered.append(dataclasses.replace(job, first=first))
        first += len(job.items)
    return ordered
