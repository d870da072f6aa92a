"""The host's side of one phase of generation.

A phase decodes a set of branches with arrays of fixed shapes, in chunks of decode steps.

While the devices decode a chunk, the host reads the trace of the previous chunk, moves waiting jobs
into rows that have become free, and yields the branches that have ended.
"""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from vinejax.core.errors import DivergedError
from vinejax.core.shapes import padded_length
from vinejax.engine import decode
from vinejax.engine.accept import (
    AcceptedPrefixes,
    RunningSearch,
    SearchConfig,
    SearchItems,
    SearchResult,
    skip_repeats,
)
from vinejax.engine.branches import BranchSet
from vinejax.engine.cache import Sizes
from vinejax.engine.collect import Collector, DecodedBranch
from vinejax.engine.decode import DecodeConfig, Trace
from vinejax.engine.drain import PhaseArrays, to_drain
from vinejax.engine.feed_queue import FeedQueue
from vinejax.engine.memory import MAX_BATCH, empty_caches, put_on_shards
from vinejax.engine.row_jobs import RowJob
from vinejax.engine.split import Weights
from vinejax.engine.stats import EngineStats
from vinejax.engine.trace import HostSteps
from vinejax.engine.unpadded_prefill import (
    CompactPlaces,
    compact_places_of,
    fit_prefill,
    in_groups,
    place_counts,
)
from vinejax.engine.window import EnteringTrunks, WindowRows, copy_rows, prefill
from vinejax.model.sharding import platform_of
from vinejax.runtime.stopping import Watch

HALVINGS = 2  # a prefill's arrays have all, half or a quarter of the window's columns


class PhaseInputs(NamedTuple):
    """The settings and arrays with which a phase begins."""

    config: DecodeConfig
    drains: tuple[Sizes, ...]  # shapes for the last branches (`drain.py`)
    skips_repeats: bool  # whether branches accept their trunks' tokens (`accept.py`)
    weights: Weights
    queue: decode.Queue
    stops: jax.Array  # i32[A, V] automaton of the stop strings (`stop.py`)
    table: np.ndarray  # `stops` on the host


class RowEntry(NamedTuple):
    """A row job that is entering a row of the window."""

    row: int
    job: RowJob
    source: int = -1  # row that holds the trunk already; -1 if the trunk must be computed


RowEntries = list[list[RowEntry]]  # per shard


class StartedChunk(NamedTuple):
    """A chunk of decode steps that the devices are computing."""

    number: int
    searches: list[RunningSearch]  # searches started between the previous chunk and this one
    old_slots: jax.Array | None  # slots' numbers before this chunk, if a drain renumbered them
    trace: Trace


class Phase:
    """The decoding of all branches of `jobs`, which has a list of row jobs per shard.

    `KeepingPhase` also decodes the branches that `feed_queue` receives while the phase runs.
    """

    _fills_rows_early = True  # whether rows are filled before the ended branches are yielded

    def __init__(
        self,
        inputs: PhaseInputs,
        branch_set: BranchSet,
        jobs: list[list[RowJob]],
        stats: EngineStats,
        feed_queue: FeedQueue,
    ):
        config = inputs.config
        self.branch_set = branch_set
        self._inputs, self._stats, self._feed_queue = inputs, stats, feed_queue
        self._model, self._mesh, self._sizes = config.model, config.mesh, config.sizes
        self._drains = inputs.drains  # drains that may follow
        caches = empty_caches(self._model, self._mesh, self._sizes)
        self._window, self._rows, self._slots = caches
        self._waiting_jobs = [deque(jobs_of_shard) for jobs_of_shard in jobs]
        self._config = self._config_for(config.sizes)
        order = [[i for job in of_shard for i in job.items] for of_shard in jobs]
        slots, chunk = config.sizes.slots, config.sizes.chunk
        self._queue = inputs.queue
        self._accepted_prefixes = AcceptedPrefixes(branch_set, order, stats, inputs.skips_repeats)
        num_accepted = self._accepted_prefixes.num_accepted
        self._collector = Collector(branch_set, order, slots, chunk, stats, num_accepted)
        # Per row, i64[Z, W]: the trunk that the row holds or is being filled with, the number of
        # its unfinished items, and the number of the first chunk that serves its job.
        shape = (len(jobs), config.sizes.rows)
        self._row_trunk, self._row_left = np.full(shape, -1), np.zeros(shape, np.int64)
        self._row_served_from = np.zeros(shape, np.int64)
        self._num_loaded = self._num_chunks = 0
        self._trunk_logprobs: list[tuple[int, jax.Array, int]] = []  # (trunk, batch, batch index)

    def run(self) -> Iterator[DecodedBranch]:
        """Yields branches as they end, in no fixed order, while the devices decode the others.

        Raises DivergedError if logits are not finite; its message names the branch and the trunk.
        Raises Stopped before a chunk of decoding if the run received a signal to stop.
        """
        watch = Watch()
        start = time.perf_counter()
        self._load()
        jax.block_until_ready((self._rows, self._queue))
        self._stats.prefill_s += time.perf_counter() - start
        previous = None
        while self._collector.not_ended.any() or any(self._waiting_jobs):
            watch.look()
            chunk = self._decode()
            if previous is not None:
                ended = self._collect(previous)
                if self._fills_rows_early:
                    self._load()  # before the caller reads and grades the ended branches
                start_of_yield = time.perf_counter()
                yield from ended
                if self._feed_queue.is_open:
                    yield from self._admit()
                    self._load()
                self._stats.host_s += time.perf_counter() - start_of_yield
            previous = chunk

    def trunk_logprobs(self) -> list[np.ndarray]:
        """For each trunk, the log-probabilities f32[length] of its own tokens.

        A trunk that is not scored has f32[0]. Raises DivergedError, whose message names the trunk,
        if log-probabilities are not finite.
        """
        by_trunk = [np.zeros(0, np.float32)] * len(self.branch_set.trunks)
        for trunk, batch, place in self._trunk_logprobs:
            length = len(self.branch_set.trunks[trunk])
            logprobs = np.asarray(jax.device_get(batch))[place][:length]
            if not np.isfinite(logprobs).all():
                raise DivergedError(
                    f"trunk {trunk}: the log-probabilities of its own tokens are not finite; "
                    "the weights have diverged"
                )
            by_trunk[trunk] = logprobs
        return by_trunk

    def _admit(self) -> Iterator[DecodedBranch]:
        """Yields nothing, as this phase has no feed. `KeepingPhase` takes the feed's input here."""
        return iter(())

    # --- trunks into rows ---

    def _load(self) -> None:
        """Moves waiting jobs into free rows of all shards."""
        self._fill([self._entries(shard) for shard in range(len(self._waiting_jobs))])

    def _fill(self, all_entries: RowEntries) -> None:
        """Copies the trunks that are already in the window, then prefills the other trunks."""
        resident, computed, copied = [], [], []
        for entries in all_entries:
            resident.append([entry for entry in entries if entry.source >= 0])
            first: dict[int, RowEntry] = {}
            again = []
            others = [entry for entry in entries if entry.source < 0]
            for entry in sorted(others, key=lambda entry: -len(self._tokens_of(entry))):
                # A trunk that enters several rows at once is computed for one of them, then copied.
                source = first.setdefault(entry.job.trunk, entry)
                if source is not entry:
                    again.append(entry._replace(source=source.row))
            computed.append(list(first.values()))
            copied.append(again)
        self._in_batches(resident, self._copy)
        self._prefill_all(computed)
        self._in_batches(copied, self._copy)

    def _entries(self, shard: int) -> list[RowEntry]:
        """The jobs that enter rows now.

        There are none unless the free rows suffice for a whole prefill batch or for all waiting
        jobs.
        """
        waiting = self._waiting_jobs[shard]
        free = np.flatnonzero(self._row_left[shard] == 0).tolist()
        batch = self._sizes.batch
        if len(free) < min(batch, len(waiting)):
            return []
        if len(free) < len(waiting) and batch > MAX_BATCH:
            # The padding of a large batch would cost as much as the trunks in it.
            free = free[: len(free) // batch * batch]
        entries = []
        while waiting and free:
            job = waiting.popleft()
            # A row that is filled in this call holds nothing yet. `_fill` computes its trunk once.
            filling = {entry.row for entry in entries}
            holders = np.flatnonzero(self._row_trunk[shard] == job.trunk).tolist()
            holders = [row for row in holders if row not in filling]
            row = self._row_for(shard, job, free, holders)
            free.remove(row)
            entries.append(RowEntry(row, job, holders[0] if holders else -1))
            self._take(shard, row, job)
        return entries

    def _row_for(self, shard: int, job: RowJob, free: list[int], holders: list[int]) -> int:
        """The free row that a job enters.

        If possible, this is one of `holders`, the rows that already hold the job's trunk.
        """
        return next((row for row in holders if row in free), free[0])

    def _take(self, shard: int, row: int, job: RowJob) -> None:
        """Reserves a row for a job, which enters this row before the next chunk."""
        self._row_trunk[shard, row], self._row_left[shard, row] = job.trunk, len(job.items)
        self._row_served_from[shard, row] = self._num_chunks

    def _in_batches(self, entries: RowEntries, run: Callable[[RowEntries], None]) -> None:
        """Calls `run` once for each batch, with the next entries of every shard."""
        size = self._sizes.batch
        for start in range(0, max(map(len, entries)), size):
            run([of_shard[start : start + size] for of_shard in entries])

    def _tokens_of(self, entry: RowEntry) -> list[int]:
        return self.branch_set.trunks[entry.job.trunk]

    def _prefill_all(self, computed: RowEntries) -> None:
        """Computes the trunks of each shard, as many per prefill as fit, the longest first.

        If padding is skipped, trunks that begin alike are computed together to share tokens.
        """
        batch, left = self._sizes.batch, computed
        if self._place_counts(self._sizes.columns):
            orders = [in_groups([*map(self._tokens_of, of_shard)]) for of_shard in left]
            left = [[x[i] for i in order] for x, order in zip(left, orders, strict=True)]
        while any(left):
            trunks = [[*map(self._tokens_of, of_shard[:batch])] for of_shard in left]
            longest = max(len(ids) for of_shard in trunks for ids in of_shard)
            length = padded_length([self._sizes.columns], longest, halvings=HALVINGS)
            fits = fit_prefill(trunks, self._place_counts(length))
            pairs = [*zip(left, fits.counts, strict=True)]
            self._prefill([of_shard[:count] for of_shard, count in pairs], length, fits.places)
            left = [of_shard[count:] for of_shard, count in pairs]

    def _place_counts(self, length: int) -> list[int]:
        """The numbers of places that a prefill of trunks of up to `length` tokens may have.

        See `unpadded_prefill.place_counts`.
        """
        return place_counts(platform_of(self._mesh), self._sizes.batch, length)

    def _compact_places(
        self, trunks: list[list[list[int]]], length: int, num_places: int | None, shares: bool
    ) -> CompactPlaces | None:
        """The places (`unpadded_prefill.py`) at which the trunks' tokens are computed.

        Returns None if `num_places` is None, which means that padding is computed, too.
        """
        if num_places is None:
            return None
        batch = self._sizes.batch
        by_shard = [
            compact_places_of(of_shard, batch, length, num_places, shares) for of_shard in trunks
        ]
        return CompactPlaces(
            source=put_on_shards(self._mesh, np.stack([x.source for x in by_shard])),
            place=put_on_shards(self._mesh, np.stack([x.place for x in by_shard])),
        )

    def _prefill(self, entries: RowEntries, length: int, num_places: int | None) -> None:
        """Computes the trunks of one batch, and starts the search for tokens that branches accept.

        The trunks have at most `length` tokens. `num_places` is the argument of `_compact_places`.
        """
        shards, batch = len(entries), self._sizes.batch
        tokens = np.zeros((shards, batch, length), np.int32)
        lengths = np.zeros((shards, batch), np.int32)
        computed = []  # pairs (trunk, its index in the batch of all shards)
        for shard, of_shard in enumerate(entries):
            for n, entry in enumerate(of_shard):
                ids = self._tokens_of(entry)
                tokens[shard, n, : len(ids)] = ids
                lengths[shard, n] = len(ids)
                computed.append((entry.job.trunk, shard * batch + n))
        self._stats.prefill_tokens += int(lengths.sum())
        scored = [(trunk, n) for trunk, n in computed if self.branch_set.scored[trunk]]
        keeps_hidden = any(self._accepted_prefixes.may_accept[trunk] for trunk, _ in computed)
        temperature = self._inputs.config.sampling.temperature if scored else None
        tokens_on_mesh, entering = put_on_shards(self._mesh, tokens), self._entering(entries)
        trunks = [[*map(self._tokens_of, of_shard)] for of_shard in entries]
        self._window, self._rows, logprobs, hidden = prefill(
            self._model, self._mesh, temperature, self._inputs.weights, self._window, self._rows,
            tokens_on_mesh, put_on_shards(self._mesh, lengths), entering, keeps_hidden,
            compact_places=self._compact_places(trunks, length, num_places, shares=True),
        )  # fmt: skip
        if logprobs is not None:
            self._trunk_logprobs += [(trunk, logprobs, n) for trunk, n in scored]
        if hidden is not None:
            self._start_search(entries, tokens_on_mesh, hidden)

    def _start_search(self, entries: RowEntries, tokens: jax.Array, hidden: jax.Array) -> None:
        """Lets branches skip the tokens of a prefill's trunks that they accept (`accept.py`).

        `tokens` and `hidden` are the prefill's tokens and its final hidden states.
        """
        inputs, sizes = self._inputs, self._sizes
        # A search computes as many logits at a time as a decode step.
        settings = SearchConfig(
            self._model, self._mesh, inputs.config.sampling, inputs.config.eos_ids, sizes.slots
        )

        def search(search_items: SearchItems) -> SearchResult:
            self._queue, result = skip_repeats(
                settings, inputs.weights, inputs.stops, self._queue, hidden, tokens, search_items
            )
            return result

        trunks = [[entry.job.trunk for entry in of_shard] for of_shard in entries]
        self._accepted_prefixes.start(self._mesh, trunks, sizes.batch, sizes.queue, search)

    def _copy(self, entries: RowEntries) -> None:
        source = np.zeros((len(entries), self._sizes.batch), np.int32)
        for shard, of_shard in enumerate(entries):
            source[shard, : len(of_shard)] = [entry.source for entry in of_shard]
        on_mesh, entering = put_on_shards(self._mesh, source), self._entering(entries)
        window, rows = self._window, self._rows
        self._window, self._rows = copy_rows(self._mesh, window, rows, on_mesh, entering)

    def _entering(self, entries: RowEntries) -> EnteringTrunks:
        """The row of each entering trunk (W for padding), and the trunk's items in the queue."""
        shape = (len(entries), self._sizes.batch)
        rows = np.full(shape, self._sizes.rows, np.int32)
        first, end, loaded = (np.zeros(shape, np.int32) for _ in range(3))
        for shard, of_shard in enumerate(entries):
            for place, (row, job, _) in enumerate(of_shard):
                rows[shard, place] = row
                first[shard, place] = job.first
                end[shard, place] = job.first + len(job.items)
                loaded[shard, place] = self._num_loaded
                self._num_loaded += 1
        serves = WindowRows(
            next=put_on_shards(self._mesh, first),
            end=put_on_shards(self._mesh, end),
            loaded=put_on_shards(self._mesh, loaded),
        )
        return EnteringTrunks(put_on_shards(self._mesh, rows), serves)

    # --- decoding ---

    def _decode(self) -> StartedChunk:
        """Starts the next chunk. If few enough branches are left, they first move to a drain."""
        old_slots = self._move_to_drain()
        # With several hosts a NumPy value is replicated; a jax array would belong to this host.
        trunks_wait = np.array(any(self._waiting_jobs) or self._feed_queue.is_open)
        chunk_inputs = decode.ChunkInputs(
            self._inputs.weights, self._window, self._queue, self._inputs.stops, trunks_wait
        )
        run = decode.chunk_program(platform_of(self._mesh))
        self._slots, self._rows, trace = run(self._config, chunk_inputs, self._slots, self._rows)
        self._num_chunks += 1
        return StartedChunk(self._num_chunks - 1, self._accepted_prefixes.take(), old_slots, trace)

    def _move_to_drain(self) -> jax.Array | None:
        """Moves the branches to the smallest of `_drains` that has room for them.

        Returns the former number of each slot, or None without a move. There is no move if no drain
        has room, if a job waits for a row, or if the feed is open.
        """
        if any(self._waiting_jobs) or self._feed_queue.is_open:
            return None
        remaining = self._collector.not_ended.max()
        large_enough = [drain for drain in self._drains if remaining <= drain.slots]
        if not large_enough:
            return None
        drain = large_enough[-1]
        arrays = PhaseArrays(self._window, self._rows, self._slots)
        arrays, old_slots = to_drain(self._mesh, self._config.sizes, drain, arrays)
        self._window, self._rows, self._slots = arrays
        self._drains = self._drains[self._drains.index(drain) + 1 :]
        self._config = self._config_for(drain)
        return old_slots

    def _config_for(self, sizes: Sizes) -> DecodeConfig:
        """The settings of the decode program with `sizes`, those of the phase or of a drain.

        On one shard a chunk ends early when the next drain can begin. Several shards move to a
        drain together, so none of their chunks ends early.
        """
        drained_at = self._drains[0].slots if self._drains and len(self._waiting_jobs) == 1 else 0
        config = self._inputs.config
        return dataclasses.replace(config, sizes=sizes, drained_at=drained_at)

    def _collect(self, chunk: StartedChunk) -> list[DecodedBranch]:
        """Waits for the trace of a chunk, and returns the branches that ended in the chunk."""
        start = time.perf_counter()
        old_slots, (steps, left) = jax.tree.map(
            np.asarray, jax.device_get((chunk.old_slots, chunk.trace))
        )
        waited = time.perf_counter()
        self._stats.wait_s += waited - start
        self._accepted_prefixes.read(chunk.searches)
        shards = len(self._waiting_jobs)
        if old_slots is not None:
            self._collector.move(old_slots)
        if any(self._waiting_jobs) or self._feed_queue.is_open:
            # The trace of a chunk that began before a job entered its row does not cover the job.
            is_current = self._row_served_from <= chunk.number
            self._row_left[is_current] = left.reshape(is_current.shape)[is_current]
        by_shard = HostSteps(*(x.reshape(shards, -1, x.shape[-1]) for x in steps))
        ended = [
            self._accepted_prefixes.with_prefix(branch) for branch in self._collector.add(by_shard)
        ]
        self._stats.host_s += time.perf_counter() - waited
        return ended
