"""A phase with a feed, whose rows keep the keys and values of a turn for the turns that follow.

After a turn the feed returns a longer trunk: the old one, the tokens that were drawn, and the
environment's answer. The phase compares tokens to find the row that holds the longest beginning of
the trunk, even if the row was filled for another episode, and computes only the tokens after this
beginning. A trunk that continues all tokens of a free row enters that row before other jobs do. The
tokens that are computed for an episode are therefore linear in its length, for any number of rows.

A trunk is computed whole if no row has half of it, for example because the trunk had to wait and
its beginning was overwritten. A trunk is also computed whole if it is scored or if branches may
accept its tokens (`accept.py`).
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
from vinejax.engine.phase import Phase, PhaseInputs, RowEntries, RowEntry, StartedChunk
from vinejax.engine.queues import longer_queue, shortened
from vinejax.engine.row_jobs import RowJob, StartedPhase, assign
from vinejax.engine.stats import EngineStats
from vinejax.engine.stop import first_states
from vinejax.engine.unpadded_prefill import fit_prefill
from vinejax.engine.window import KnownTrunk, prefill

# A trunk's missing tokens are computed in parts of one length, by one program.
PARTS = 8  # parts per row
MAX_PART = 128  # tokens of a part, each of whose queries attends to a whole row


class _MissingTokens(NamedTuple):
    """The tokens of an entering trunk that must be computed: those after the first `columns`.

    Row `source` holds the keys and values of the trunk's first `columns` tokens.
    """

    entry: RowEntry
    source: int
    columns: int


class KeepingPhase(Phase):
    """A phase with a feed. It computes only those tokens of a trunk that the rows lack."""

    def __init__(
        self,
        inputs: PhaseInputs,
        branch_set: BranchSet,
        jobs: list[list[RowJob]],
        stats: EngineStats,
        feed_queue: FeedQueue,
    ):
        super().__init__(inputs, branch_set, jobs, stats, feed_queue)
        sizes, shards = self._sizes, len(jobs)
        # Number of items, and sum of their budgets, in each shard's queue.
        self._num_items = np.array([sum(len(job.items) for job in x) for x in jobs])
        self._budgets = np.array([sum(job.work for job in x) for x in jobs])
        self._longest_budget = max([1, *branch_set.budgets])
        self._part_length = min(doubled(sizes.columns // PARTS, least=8), MAX_PART)
        # i32[Z, W, S] tokens whose keys and values a row has, then -1
        self._row_tokens = np.full((shards, sizes.rows, sizes.columns), -1, np.int32)
        self._row_lengths = np.zeros((shards, sizes.rows), np.int64)  # number of these tokens
        self._claims: RowEntries = [[] for _ in jobs]  # jobs with a row that is reserved for them
        self._home: list[dict[int, int]] = [{} for _ in jobs]  # row to enter, if free, by trunk

    # --- the feed's input ---

    def _collect(self, chunk: StartedChunk) -> list[DecodedBranch]:
        """Calls the feed's `watch`, too, and shortens the branches that it returns."""
        ended, queue = super()._collect(chunk), self._feed_queue
        if queue.feed is None or queue.feed.watch is None:
            return ended
        running = {branch.branch: branch for branch in self._collector.running()}
        over = queue.feed.watch(
            (queue.first + i, self._accepted_prefixes.with_prefix(branch).tokens)
            for i, branch in running.items()
        )
        if numbers := [i - queue.first for i in over]:
            shape = len(self._waiting_jobs), self._sizes.queue
            most = np.full(shape, self._sizes.width, np.int32)
            for i in numbers:
                # A branch that restarts for lack of a page draws again what `watch` has seen.
                num_seen = len(running[i].tokens) if i in running else 1
                most[self._collector.place_of(i)] = num_seen
            self._queue = shortened(self._queue, put_on_shards(self._mesh, most))
        return ended

    @property
    def _fills_rows_early(self) -> bool:
        """Whether rows are filled before the branches that ended are yielded.

        This is False while the feed is open. Rows are then filled after the feed has returned the
        next turns, so that a next turn can enter the row of the turn that ended.
        """
        return not self._feed_queue.is_open

    def _admit(self) -> Iterator[DecodedBranch]:
        """Adds the feed's input to the queue or, if it does not fit, keeps it for a later phase.

        Yields the branches of budget 0, which end at once without tokens.
        """
        fed = self._feed_queue.take()
        if fed is None:
            return
        more = fed.within(self._sizes.columns)
        jobs = self._jobs_of(more)
        if self._feed_queue.has_waiting or not self._fits(more, jobs):
            self._feed_queue.hold(fed)
            return
        trunk, branch = len(self.branch_set.trunks), len(self.branch_set.branches)
        self.branch_set.add(more)
        self._enqueue(more, jobs, trunk, branch)
        for i, budget in enumerate(more.budgets, start=branch):
            if budget <= 0:
                yield DecodedBranch(i, np.zeros(0, np.int32), np.zeros(0, np.float32), LENGTH)

    def _jobs_of(self, more: BranchSet) -> list[list[RowJob]]:
        """The row jobs of further branches, for each shard.

        Branches on equal trunks have different trunks after their next turn, so every branch needs
        a row of its own.
        """
        work = self._collector.not_ended * self._longest_budget
        started = StartedPhase(self._num_items.tolist(), work.tolist(), self._shard_of(more))
        shards, rows = len(self._waiting_jobs), self._sizes.rows
        return assign(more, shards, rows, started, row_per_branch=True)

    def _shard_of(self, more: BranchSet) -> dict[int, int]:
        """For each trunk whose beginning is in a row, the shard with the longest such beginning.

        The result is empty if there is only one shard.
        """
        num_shards = len(self._row_tokens)
        if num_shards == 1:
            return {}
        shard_of = {}
        for i, ids in enumerate(more.trunks):
            if not ids:  # all branches of the trunk have a budget of 0
                continue
            most = [self._common(shard, ids).max() for shard in range(num_shards)]
            if max(most):
                shard_of[i] = int(np.argmax(most))
        return shard_of

    def _fits(self, more: BranchSet, jobs: list[list[RowJob]]) -> bool:
        """Whether further branches fit the window's columns, the slots' columns and the queue."""
        sizes, items = self._sizes, [sum(len(x.items) for x in of_shard) for of_shard in jobs]
        if more.longest > sizes.columns or max(more.budgets, default=0) > sizes.width:
            return False
        return bool((self._num_items + items).max() < sizes.queue)

    def _enqueue(self, more: BranchSet, jobs: list[list[RowJob]], trunk: int, branch: int) -> None:
        """Adds the branches of `more` to the queue; their jobs reserve rows or wait for rows.

        `trunk` and `branch` are the numbers that the first trunk and the first branch of `more`
        have in `branch_set`.
        """
        order = [[i for job in of_shard for i in job.items] for of_shard in jobs]
        match = first_states(self._inputs.table, more)
        self._queue = longer_queue(self._mesh, self._queue, more, match, jobs, self._budgets)
        self._longest_budget = max([self._longest_budget, *more.budgets])
        numbered = [[branch + i for i in of_shard] for of_shard in order]
        self._accepted_prefixes.add_branches(numbered)
        self._collector.add_branches(numbered)
        for shard, of_shard in enumerate(jobs):
            numbered = [dataclasses.replace(job, trunk=trunk + job.trunk) for job in of_shard]
            self._wait(shard, numbered)
        self._num_items = self._num_items + [len(of_shard) for of_shard in order]
        self._budgets += [sum(job.work for job in of_shard) for of_shard in jobs]

    def _wait(self, shard: int, jobs: list[RowJob]) -> None:
        """Reserves a row for each job, or lets the job wait.

        A job reserves a free row if the job's trunk begins with all tokens of that row. If there is
        no such row, the job waits. A job whose trunk must be computed whole always waits.
        """
        for job in jobs:
            if not self._is_whole(job.trunk):
                columns = self._common(shard, self.branch_set.trunks[job.trunk])
                is_free, is_all = self._row_left[shard] == 0, columns == self._row_lengths[shard]
                continued = np.where(is_free & is_all, columns, 0)
                if continued.any():
                    row = self._home[shard][job.trunk] = int(continued.argmax())
                    self._take(shard, row, job)
                    self._claims[shard].append(RowEntry(row, job))
                    continue
                self._home[shard][job.trunk] = int(columns.argmax())
            self._waiting_jobs[shard].append(job)

    # --- jobs and their rows ---

    def _entries(self, shard: int) -> list[RowEntry]:
        """The jobs that enter rows now, including those with a reserved row.

        A trunk's home row is the row that held the trunk's longest beginning when its job arrived.
        Waiting jobs whose home row has become free get rows first. In the result, jobs that enter
        their home row are last, because other jobs may still copy tokens from these rows.
        """
        claims, self._claims[shard] = self._claims[shard], []
        free = set(np.flatnonzero(self._row_left[shard] == 0).tolist())
        home: dict[int, int] = self._home[shard]
        ready, others = [], []
        for job in self._waiting_jobs[shard]:
            row = home.get(job.trunk, -1)
            (ready if row in free else others).append(job)
            free.discard(row)
        self._waiting_jobs[shard] = deque(ready + others)
        entries = [*super()._entries(shard), *claims]
        # No whole trunk is copied from a row that is filled in this call: see `_fill`.
        filled = {entry.row for entry in entries}
        entries = [
            x._replace(source=-1) if x.source != x.row and x.source in filled else x
            for x in entries
        ]
        return sorted(entries, key=lambda x: x.row == home.get(x.job.trunk))

    def _row_for(self, shard: int, job: RowJob, free: list[int], holders: list[int]) -> int:
        row = self._home[shard].get(job.trunk, -1)
        return row if row in free else super()._row_for(shard, job, free, holders)

    # --- the missing tokens of trunks ---

    def _is_whole(self, trunk: int) -> bool:
        """Whether a trunk must be computed whole, even if a row has its beginning."""
        return self.branch_set.scored[trunk] or self._accepted_prefixes.may_accept[trunk]

    def _common(self, shard: int, ids: list[int]) -> np.ndarray:
        """For each row, the number of first tokens that the row shares with `ids`, i64[W]."""
        is_other = self._row_tokens[shard, :, : len(ids)] != np.array(ids, np.int32)
        return np.where(is_other.any(axis=1), is_other.argmax(axis=1), len(ids))

    def _fill(self, all_entries: RowEntries) -> None:
        """Writes trunks into rows.

        Trunks whose beginnings are in rows come first, because writing the others could overwrite
        these rows.
        """
        all_missing: list[list[_MissingTokens]] = [[] for _ in all_entries]
        others: RowEntries = [[] for _ in all_entries]
        for shard, entries in enumerate(all_entries):
            computed: dict[int, int] = {}  # row in which the missing tokens are computed, by trunk
            pairs = [(entry, self._missing_tokens(shard, entry)) for entry in entries]
            for entry, missing in pairs:
                if missing is None:
                    others[shard].append(entry)
                elif computed.setdefault(entry.job.trunk, entry.row) == entry.row:
                    all_missing[shard].append(missing)
                else:
                    others[shard].append(entry._replace(source=computed[entry.job.trunk]))
            for entry in entries:
                ids = self._tokens_of(entry)
                self._row_tokens[shard, entry.row, : len(ids)] = ids
                self._row_lengths[shard, entry.row] = len(ids)
        while any(all_missing):
            self._compute_all(all_missing)
            all_missing = [
                [after for missing in of_shard if (after := self._after_part(missing))]
                for of_shard in all_missing
            ]
        super()._fill(others)

    def _missing_tokens(self, shard: int, entry: RowEntry) -> _MissingTokens | None:
        """The missing tokens of an entering trunk if a row holds the trunk's beginning.

        Returns None if the whole trunk must be computed, or if a row holds the whole trunk.
        """
        ids, missing = self._tokens_of(entry), None
        if entry.source < 0 and not self._is_whole(entry.job.trunk):
            columns = self._common(shard, ids)
            source = int(columns.argmax())
            # The last token is computed in any case, as no program computes zero tokens.
            most = min(int(columns[source]), len(ids) - 1)
            missing = _MissingTokens(entry, source, most) if 2 * most >= len(ids) else None
        self._row_tokens[shard, entry.row] = -1  # so that no later entry copies from this row
        return missing

    def _after_part(self, missing: _MissingTokens) -> _MissingTokens | None:
        """The tokens that are still missing after the next part of `_part_length` tokens.

        Returns None if no token is missing then.
        """
        columns = missing.columns + self._part_length
        is_over = columns >= len(self._tokens_of(missing.entry))
        return None if is_over else _MissingTokens(missing.entry, missing.entry.row, columns)

    def _part(self, missing: _MissingTokens) -> list[int]:
        return self._tokens_of(missing.entry)[missing.columns :][: self._part_length]

    def _compute_all(self, all_missing: list[list[_MissingTokens]]) -> None:
        """Computes the next part (`_part`) of the missing tokens of each trunk.

        The trunks are computed in order, and each prefill takes as many of them as fit.
        """
        while any(all_missing):
            parts = [[*map(self._part, of_shard[: self._sizes.batch])] for of_shard in all_missing]
            fits = fit_prefill(parts, self._place_counts(self._part_length), shares=False)
            pairs = [*zip(all_missing, fits.counts, strict=True)]
            self._compute([of_shard[:count] for of_shard, count in pairs], fits.places)
            all_missing = [of_shard[count:] for of_shard, count in pairs]

    def _compute(self, all_missing: list[list[_MissingTokens]], num_places: int | None) -> None:
        shards, batch = len(all_missing), self._sizes.batch
        tokens = np.zeros((shards, batch, self._part_length), np.int32)
        lengths, source, columns = np.zeros((3, shards, batch), np.int32)
        for shard, of_shard in enumerate(all_missing):
            for place, missing in enumerate(of_shard):
                ids = self._part(missing)
                tokens[shard, place, : len(ids)] = ids
                lengths[shard, place] = len(ids)
                source[shard, place] = missing.source
                columns[shard, place] = missing.columns
                self._stats.prefill_tokens += len(ids)
        entering = self._entering([[x.entry for x in of_shard] for of_shard in all_missing])
        known = KnownTrunk(put_on_shards(self._mesh, source), put_on_shards(self._mesh, columns))
        parts = [[*map(self._part, of_shard)] for of_shard in all_missing]
        self._window, self._rows, *_ = prefill(
            self._model, self._mesh, None, self._inputs.weights, self._window, self._rows,
            put_on_shards(self._mesh, tokens), put_on_shards(self._mesh, lengths), entering,
            known=known,
            compact_places=self._compact_places(parts, self._part_length, num_places, shares=False),
        )  # fmt: skip
