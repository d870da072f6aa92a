"""A phase that is fed, whose rows keep their columns for the trunks that go on: those of turns.

After a turn its trunk comes again, with what was drawn and answered at its end. Tokens tell which
row has most of a trunk, whatever it was loaded for, and only the rest is computed. A trunk that
goes on from all of a free row enters that row at once, before other loads can. So the tokens that
an episode computes are linear in its length, however many rows there are.

Computed whole, with the same tokens, are trunks of which no row has half: they had to wait, say,
and what they go on from was overwritten. So are trunks that are scored, or that branches may repeat
(`accept.py`).
"""

import dataclasses
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from vinejax.core.shapes import doubled
from vinejax.engine.branches import BranchSet
from vinejax.engine.collect import DecodedBranch
from vinejax.engine.decode import LENGTH
from vinejax.engine.feed_queue import FeedQueue
from vinejax.engine.memory import put_on_shards
from vinejax.engine.phase import Phase, PhasePrograms, RowEntries, RowEntry
from vinejax.engine.queues import longer_queue
from vinejax.engine.slot_assignment import RowJob, StartedPhase, assign
from vinejax.engine.stats import EngineStats
from vinejax.engine.stop import first_states
from vinejax.engine.unpadded_prefill import fit_prefill
from vinejax.engine.window import KnownTrunk, prefill

PARTS = 8  # of a row, which are computed at a time: one program for rests of all lengths
MOST = 128  # tokens of such a part: all its queries attend to a whole row


class _TrunkRest(NamedTuple):
    """A trunk on its way into a row, of which row `source` has the first `columns`."""

    entry: RowEntry
    source: int
    columns: int


class KeepingPhase(Phase):
    """A phase that is fed, and computes of a trunk what no row of its shard has."""

    def __init__(
        self,
        programs: PhasePrograms,
        branch_set: BranchSet,
        jobs: list[list[RowJob]],
        stats: EngineStats,
        feed_queue: FeedQueue,
    ):
        super().__init__(programs, branch_set, jobs, stats, feed_queue)
        sizes, shards = self._sizes, len(jobs)
        # Of each shard's queue: its items, and the sum of their budgets.
        self._queued = np.array([sum(len(job.items) for job in x) for x in jobs])
        self._budgets = np.array([sum(job.work for job in x) for x in jobs])
        self._longest_budget = max([1, *branch_set.budgets])
        self._length = min(doubled(sizes.columns // PARTS, least=8), MOST)
        # i32[Z, W, S] the tokens whose columns a row has, then -1
        self._held = np.full((shards, sizes.rows, sizes.columns), -1, np.int32)
        self._num_held = np.zeros((shards, sizes.rows), np.int64)  # their number
        self._claimed: RowEntries = [[] for _ in jobs]  # loads that have their row already
        self._home: list[dict[int, int]] = [{} for _ in jobs]  # by trunk: the row that had most

    # --- work that is fed ---

    @property
    def _fills_rows_early(self) -> bool:
        """Not while turns may go on in the rows of those that have just ended."""
        return not self._feed_queue.is_open

    def _admit(self) -> Iterator[DecodedBranch]:
        """Adds what the caller feeds to the queue, or leaves it to a following phase.

        Gives the branches without a budget, which have ended.
        """
        given = self._feed_queue.take()
        if given is None:
            return
        more = given.within(self._sizes.columns)
        jobs = self._jobs_of(more)
        if self._feed_queue.holds or not self._fits(more, jobs):
            self._feed_queue.hold(given)
            return
        trunk, branch = len(self.branch_set.trunks), len(self.branch_set.branches)
        self.branch_set.add(more)
        self._enqueue(more, jobs, trunk, branch)
        for i, budget in enumerate(more.budgets, start=branch):
            if budget <= 0:
                yield DecodedBranch(i, np.zeros(0, np.int32), np.zeros(0, np.float32), LENGTH)

    def _jobs_of(self, more: BranchSet) -> list[list[RowJob]]:
        """The loads of further work, for each shard.

        So little work is expected that every branch gets a row: trunks that are equal now go
        different ways.
        """
        shards, sizes = len(self._waiting), self._sizes
        left = self._collector.not_ended * self._longest_budget
        begun = StartedPhase(self._queued.tolist(), left.tolist(), 1, self._shard_of(more))
        return assign(more, shards, sizes.rows, begun)

    def _shard_of(self, more: BranchSet) -> dict[int, int]:
        """The shards to which trunks of further work are bound: those that have most of them."""
        if len(self._held) == 1:
            return {}
        bound = {}
        for i, ids in enumerate(more.trunks):
            most = [self._common(shard, ids).max() for shard in range(len(self._held))]
            if max(most):
                bound[i] = int(np.argmax(most))
        return bound

    def _fits(self, more: BranchSet, jobs: list[list[RowJob]]) -> bool:
        """Whether window, slots and queue have room for further work."""
        sizes, items = self._sizes, [sum(len(x.items) for x in of_shard) for of_shard in jobs]
        if more.longest > sizes.columns or max(more.budgets, default=0) > sizes.width:
            return False
        return bool((self._queued + items).max() < sizes.queue)

    def _enqueue(self, more: BranchSet, jobs: list[list[RowJob]], trunk: int, branch: int) -> None:
        """Puts branches of `branch_set` into the queue, and their trunks into the line for a row.

        `more` has the same branches by themselves: `trunk` and `branch` are the numbers of its
        first trunk and branch in `branch_set`.
        """
        order = [[i for job in of_shard for i in job.items] for of_shard in jobs]
        match = first_states(self._programs.table, more)
        self._queue = longer_queue(self._mesh, self._queue, more, match, jobs, self._budgets)
        self._longest_budget = max([self._longest_budget, *more.budgets])
        numbered = [[branch + i for i in of_shard] for of_shard in order]
        self._accepted.add_branches(numbered)
        self._collector.add_branches(numbered)
        for shard, of_shard in enumerate(jobs):
            numbered = [dataclasses.replace(job, trunk=trunk + job.trunk) for job in of_shard]
            self._wait(shard, numbered)
        self._queued = self._queued + [len(of_shard) for of_shard in order]
        self._budgets += [sum(job.work for job in of_shard) for of_shard in jobs]

    def _wait(self, shard: int, jobs: list[RowJob]) -> None:
        """Takes fed loads: into the row that they go on from, or into the line for one."""
        for job in jobs:
            if not self._is_whole(job.trunk):
                columns = self._common(shard, self.branch_set.trunks[job.trunk])
                is_free, is_all = self._row_left[shard] == 0, columns == self._num_held[shard]
                goes_on = np.where(is_free & is_all, columns, 0)
                if goes_on.any():
                    row = self._home[shard][job.trunk] = int(goes_on.argmax())
                    self._take(shard, row, job)
                    self._claimed[shard].append(RowEntry(row, job))
                    continue
                self._home[shard][job.trunk] = int(columns.argmax())
            self._waiting[shard].append(job)

    # --- loads and their rows ---

    def _entries(self, shard: int) -> list[RowEntry]:
        """Also the loads that have a row already; first those whose row has become free.

        Those that enter where their beginning is come last: others may have to copy it before.
        """
        claimed, self._claimed[shard] = self._claimed[shard], []
        free = set(np.flatnonzero(self._row_left[shard] == 0).tolist())
        home: dict[int, int] = self._home[shard]
        ready, others = [], []
        for job in self._waiting[shard]:
            row = home.get(job.trunk, -1)
            (ready if row in free else others).append(job)
            free.discard(row)
        self._waiting[shard] = deque(ready + others)
        entries = [*super()._entries(shard), *claimed]
        # A row that is filled in this call is none to copy a whole trunk from: see `_fill`.
        filled = {entry.row for entry in entries}
        entries = [
            x._replace(source=-1) if x.source != x.row and x.source in filled else x
            for x in entries
        ]
        return sorted(entries, key=lambda x: x.row == home.get(x.job.trunk))

    def _row_for(self, shard: int, job: RowJob, free: list[int], holders: list[int]) -> int:
        row = self._home[shard].get(job.trunk, -1)
        return row if row in free else super()._row_for(shard, job, free, holders)

    # --- the rest of trunks ---

    def _is_whole(self, trunk: int) -> bool:
        """Whether all of a trunk must be computed, whatever rows have."""
        return self.branch_set.scored[trunk] or self._accepted.are_possible[trunk]

    def _common(self, shard: int, ids: list[int]) -> np.ndarray:
        """i64[W]: how many first tokens of a trunk each row has."""
        is_other = self._held[shard, :, : len(ids)] != np.array(ids, np.int32)
        return np.where(is_other.any(axis=1), is_other.argmax(axis=1), len(ids))

    def _fill(self, all_entries: RowEntries) -> None:
        """Computes the rests of trunks before rows with their beginnings are filled anew."""
        rests: list[list[_TrunkRest]] = [[] for _ in all_entries]
        others: RowEntries = [[] for _ in all_entries]
        for shard, entries in enumerate(all_entries):
            computed: dict[int, int] = {}  # by trunk: the row in which its rest is computed
            for entry, rest in [(entry, self._rest(shard, entry)) for entry in entries]:
                if rest is None:
                    others[shard].append(entry)
                elif computed.setdefault(entry.job.trunk, entry.row) == entry.row:
                    rests[shard].append(rest)
                else:
                    others[shard].append(entry._replace(source=computed[entry.job.trunk]))
            for entry in entries:
                ids = self._tokens_of(entry)
                self._held[shard, entry.row, : len(ids)] = ids
                self._num_held[shard, entry.row] = len(ids)
        while any(rests):
            self._compute_all(rests)
            rests = [[rest for x in of_shard if (rest := self._after(x))] for of_shard in rests]
        super()._fill(others)

    def _rest(self, shard: int, entry: RowEntry) -> _TrunkRest | None:
        """The end of a trunk that has to be computed, where a row holds its beginning.

        None where the whole trunk has to be computed, or nothing of it.
        """
        ids, rest = self._tokens_of(entry), None
        if entry.source < 0 and not self._is_whole(entry.job.trunk):
            columns = self._common(shard, ids)
            source = int(columns.argmax())
            # The last token has to be computed in any case: no program computes none.
            most = min(int(columns[source]), len(ids) - 1)
            rest = _TrunkRest(entry, source, most) if 2 * most >= len(ids) else None
        self._held[shard, entry.row] = -1  # of which no later entry can be copied
        return rest

    def _after(self, rest: _TrunkRest) -> _TrunkRest | None:
        """What is left of a trunk once the next part has been computed."""
        columns = rest.columns + self._length
        is_over = columns >= len(self._tokens_of(rest.entry))
        return None if is_over else _TrunkRest(rest.entry, rest.entry.row, columns)

    def _part(self, rest: _TrunkRest) -> list[int]:
        return self._tokens_of(rest.entry)[rest.columns :][: self._length]

    def _compute_all(self, rests: list[list[_TrunkRest]]) -> None:
        """Computes the next part of each, in their order, as many at a time as fit."""
        while any(rests):
            parts = [[*map(self._part, of_shard[: self._sizes.batch])] for of_shard in rests]
            fits = fit_prefill(parts, self._place_counts(self._length), shares=False)
            pairs = [*zip(rests, fits.counts, strict=True)]
            self._compute([of_shard[:count] for of_shard, count in pairs], fits.places)
            rests = [of_shard[count:] for of_shard, count in pairs]

    def _compute(self, rests: list[list[_TrunkRest]], num_places: int | None) -> None:
        shards, batch = len(rests), self._sizes.batch
        tokens = np.zeros((shards, batch, self._length), np.int32)
        lengths, source, columns = np.zeros((3, shards, batch), np.int32)
        for shard, of_shard in enumerate(rests):
            for place, rest in enumerate(of_shard):
                ids = self._part(rest)
                tokens[shard, place, : len(ids)] = ids
                lengths[shard, place] = len(ids)
                source[shard, place], columns[shard, place] = rest.source, rest.columns
                self._stats.prefill_tokens += len(ids)
        entering = self._entering([[rest.entry for rest in of_shard] for of_shard in rests])
        known = KnownTrunk(put_on_shards(self._mesh, source), put_on_shards(self._mesh, columns))
        parts = [[*map(self._part, of_shard)] for of_shard in rests]
        self._window, self._rows, *_ = prefill(
            self._model, self._mesh, None, self._programs.weights, self._window, self._rows,
            put_on_shards(self._mesh, tokens), put_on_shards(self._mesh, lengths), entering,
            known=known,
            compact_places=self._compact_places(parts, self._length, num_places, shares=False),
        )  # fmt: skip
