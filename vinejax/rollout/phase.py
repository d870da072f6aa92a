"""One phase of generation: the host's side of the loop.

The host keeps one chunk of decoding ahead: while the devices work on it, the last one's trace is
read, what has ended is handed out, and waiting trunks are loaded into rows that have become free.
"""

import functools
import itertools
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from vinejax.errors import DivergedError
from vinejax.rollout.arrays import on_shards
from vinejax.rollout.assign import Load, Sizes
from vinejax.rollout.branches import Work
from vinejax.rollout.decode import GOING, NOT_FINITE, Slots, Trace
from vinejax.rollout.stats import EngineStats
from vinejax.rollout.window import Rows, Window
from vinejax.shapes import bucket


class Programs(NamedTuple):
    """The compiled programs, with all that does not change in a phase filled in."""

    # (window, rows, tokens [D*B, t], into [D*B], served) -> (window, rows, log-probs or None)
    prefill: Callable[..., tuple[Window, Rows, Any]]
    # (window, rows, source [D*B], into [D*B], served) -> (window, rows)
    copy: Callable[..., tuple[Window, Rows]]
    # (window, trunks wait, slots, rows) -> (slots, rows, trace)
    decode: Callable[..., tuple[Slots, Rows, Trace]]


class Drawn(NamedTuple):
    """A branch that has ended."""

    branch: int
    tokens: list[int]
    logprobs: list[float]
    ended: int  # LENGTH, EOS or STOP


class _Entry(NamedTuple):
    """A load on its way into a row."""

    row: int
    load: Load
    source: int = -1  # the row that holds its trunk already; -1: it is to be computed


def queue_fields(work: Work, loads: list[list[Load]], size: int) -> dict[str, np.ndarray]:
    """The shards' branches in the order of their loads, padded to `size`: [D, size] each.

    `size` is larger than their number: rows look one past the last.
    """
    shape = (len(loads), size)
    fields = {name: np.ones(shape, np.int32) for name in ("position", "token", "budget", "match")}
    seed = np.zeros((*shape, 2), np.uint32)
    for shard, own in enumerate(loads):
        for q, i in enumerate(i for load in own for i in load.items):
            fields["position"][shard, q] = work.position[i]
            fields["token"][shard, q] = work.last[i]
            fields["budget"][shard, q] = work.budget[i]
            fields["match"][shard, q] = work.match[i]
            seed[shard, q] = work.seed[i] >> 32, work.seed[i] & 0xFFFFFFFF
    before = np.cumsum(fields["budget"], axis=1, dtype=np.int32) - fields["budget"]
    return fields | {"seed": seed, "before": before}


class Phase:
    """Grows the branches of `loads`, a list a shard."""

    def __init__(
        self, mesh: Mesh, programs: Programs, work: Work, loads: list[list[Load]], sizes: Sizes,
        empty: tuple[Window, Rows, Slots], stats: EngineStats,
    ):  # fmt: skip
        self._mesh, self._programs, self._work = mesh, programs, work
        self._sizes, self._stats = sizes, stats
        self._window, self._rows, self._slots = empty
        self._waiting = [deque(own) for own in loads]
        self._order = [[i for load in own for i in load.items] for own in loads]
        self._not_ended = np.array([len(order) for order in self._order])
        shape = (len(loads), sizes.rows)
        self._trunk = np.full(shape, -1)  # that each row holds
        self._left = np.zeros(shape, np.int64)  # items of each row that have not ended
        self._seen_by = np.zeros(shape, np.int64)  # the first chunk that a row's load was there for
        self._num_loaded = self._num_chunks = 0
        self._tokens: dict[int, list[int]] = defaultdict(list)
        self._logprobs: dict[int, list[float]] = defaultdict(list)
        self._trunk_logprobs: list[tuple[int, jax.Array, int]] = []

    def run(self) -> Iterator[Drawn]:
        """The branches as they end, in no order. Devices work while the caller has one in hand.

        Raises DivergedError naming a trunk whose logits are not finite.
        """
        start = time.perf_counter()
        self._load()
        jax.block_until_ready(self._rows)
        self._stats.prefill_s += time.perf_counter() - start
        previous = None
        while self._not_ended.any() or any(self._waiting):
            trace = self._decode()
            if previous is not None:
                yield from self._collect(*previous)
                self._load()
            previous = trace

    def trunk_logprobs(self) -> dict[int, np.ndarray]:
        """f32[length] of every trunk that was computed, where `prefill` gives them.

        Raises DivergedError naming a trunk where they are not finite.
        """
        found = {}
        for trunk, array, place in self._trunk_logprobs:
            own = np.asarray(jax.device_get(array))[place][: len(self._work.trunks[trunk])]
            if not np.isfinite(own).all():
                raise DivergedError(
                    f"trunk {trunk}: the log-probabilities of its own tokens are not finite; "
                    "the weights have diverged"
                )
            found[trunk] = own
        return found

    # --- trunks into rows ---

    def _load(self) -> None:
        """Waiting trunks into free rows: copies of what is resident, then prefills of the rest."""
        entries = [self._entries(shard) for shard in range(len(self._waiting))]
        resident = [[e for e in own if e.source >= 0] for own in entries]
        # A trunk that enters several rows at once is computed for the first, and copied after.
        computed: list[list[_Entry]] = []
        copied: list[list[_Entry]] = []
        for own in entries:
            first: dict[int, int] = {}
            computed.append([])
            copied.append([])
            for entry in sorted(
                (e for e in own if e.source < 0), key=lambda e: -len(self._tokens_of(e))
            ):
                if entry.load.trunk in first:
                    source = first[entry.load.trunk]
                    copied[-1].append(entry._replace(source=source))
                else:
                    first[entry.load.trunk] = entry.row
                    computed[-1].append(entry)
        self._in_batches(resident, self._copy)
        self._in_batches(computed, self._prefill)
        self._in_batches(copied, self._copy)

    def _entries(self, shard: int) -> list[_Entry]:
        """What can be loaded now: a whole batch, or all that waits."""
        waiting = self._waiting[shard]
        free = [int(row) for row in np.flatnonzero(self._left[shard] == 0)]
        if len(free) < min(self._sizes.batch, len(waiting)):
            return []
        entries = []
        while waiting and free:
            load = waiting.popleft()
            holders = [int(row) for row in np.flatnonzero(self._trunk[shard] == load.trunk)]
            # Those of this round hold nothing yet: a trunk that they wait for is computed once.
            holders = [row for row in holders if row not in {e.row for e in entries}]
            row = next((row for row in holders if row in free), free[0])
            free.remove(row)
            entries.append(_Entry(row, load, holders[0] if holders else -1))
            self._trunk[shard, row] = load.trunk
            self._left[shard, row] = len(load.items)
            self._seen_by[shard, row] = self._num_chunks
        return entries

    def _in_batches(
        self, entries: list[list[_Entry]], run: Callable[[list[list[_Entry]]], None]
    ) -> None:
        """`run` on a batch of each shard's entries after the other."""
        size = self._sizes.batch
        for start in range(0, max(map(len, entries)), size):
            run([own[start : start + size] for own in entries])

    def _tokens_of(self, entry: _Entry) -> list[int]:
        return self._work.trunks[entry.load.trunk]

    def _prefill(self, entries: list[list[_Entry]]) -> None:
        shards, batch = len(entries), self._sizes.batch
        longest = max(len(self._tokens_of(e)) for own in entries for e in own)
        length = min(bucket(longest, least=32), self._sizes.columns)
        tokens = np.zeros((shards, batch, length), np.int32)
        for (shard, own), place in itertools.product(enumerate(entries), range(batch)):
            if place < len(own):
                ids = self._tokens_of(own[place])
                tokens[shard, place, : len(ids)] = ids
                self._stats.prefill_tokens += len(ids)
        into, served = self._served(entries)
        self._window, self._rows, logprobs = self._programs.prefill(
            self._window, self._rows, on_shards(self._mesh, tokens), into, served
        )
        if logprobs is not None:
            for shard, own in enumerate(entries):
                for place, entry in enumerate(own):
                    found = (entry.load.trunk, logprobs, shard * batch + place)
                    self._trunk_logprobs.append(found)

    def _copy(self, entries: list[list[_Entry]]) -> None:
        source = np.zeros((len(entries), self._sizes.batch), np.int32)
        for shard, own in enumerate(entries):
            source[shard, : len(own)] = [entry.source for entry in own]
        into, served = self._served(entries)
        self._window, self._rows = self._programs.copy(
            self._window, self._rows, on_shards(self._mesh, source), into, served
        )

    def _served(self, entries: list[list[_Entry]]) -> tuple[jax.Array, Rows]:
        """(the rows that are loaded, what they then serve), padded to a batch a shard."""
        shape = (len(entries), self._sizes.batch)
        into = np.full(shape, self._sizes.rows, np.int32)
        first, end, loaded = (np.zeros(shape, np.int32) for _ in range(3))
        for shard, own in enumerate(entries):
            for place, (row, load, _) in enumerate(own):
                into[shard, place] = row
                first[shard, place] = load.first
                end[shard, place] = load.first + len(load.items)
                loaded[shard, place] = self._num_loaded
                self._num_loaded += 1
        put = functools.partial(on_shards, self._mesh)
        return put(into), Rows(put(first), put(end), put(loaded))

    # --- decoding ---

    def _decode(self) -> tuple[int, Trace]:
        # A NumPy value is the same on every host; a jax array would be this one's.
        waiting = np.array(any(self._waiting))
        self._slots, self._rows, trace = self._programs.decode(
            self._window, waiting, self._slots, self._rows
        )
        self._num_chunks += 1
        return self._num_chunks - 1, trace

    def _collect(self, chunk: int, trace: Any) -> Iterator[Drawn]:
        start = time.perf_counter()
        trace = jax.tree.map(np.asarray, jax.device_get(trace))
        waited = time.perf_counter()
        self._stats.wait_s += waited - start
        left = trace.left.reshape(self._left.shape)
        # A chunk that was under way when a row was loaded knows nothing of it.
        self._left = np.where(self._seen_by <= chunk, left, self._left)
        S = self._sizes.slots
        steps = []
        for shard, order in enumerate(self._order):
            mine = slice(shard * S, (shard + 1) * S)
            item, ended = trace.item[:, mine], trace.ended[:, mine]
            steps.append(self._count(shard, item >= 0, ended != GOING))
            for slot in range(S):
                column = shard * S + slot
                yield from self._ended(order, *(x[: steps[-1], column] for x in trace[:4]))
        self._stats.decode_steps += max(steps)
        self._stats.host_s += time.perf_counter() - waited

    def _count(self, shard: int, busy: np.ndarray, ended: np.ndarray) -> int:
        """Counts a shard's steps [chunk, S]; returns how many there were."""
        num_busy, num_ended = busy.sum(axis=1), ended.sum(axis=1)
        steps = int((num_busy > 0).sum())
        # Of those that have not ended before a step, the busy ones have begun.
        begun_later = self._not_ended[shard] - (np.cumsum(num_ended) - num_ended) - num_busy
        queued = (begun_later > 0) & (num_busy > 0)
        self._not_ended[shard] -= num_ended.sum()
        self._stats.slot_steps += steps * busy.shape[1]
        self._stats.decoded_tokens += int(num_busy.sum())
        self._stats.queued_slot_steps += int(queued.sum()) * busy.shape[1]
        self._stats.queued_tokens += int(num_busy[queued].sum())
        return steps

    def _ended(
        self, order: list[int], item: np.ndarray, token: np.ndarray, logprob: np.ndarray,
        ended: np.ndarray,
    ) -> Iterator[Drawn]:  # fmt: skip
        """One slot's steps, cut where its item changes."""
        cuts = [0, *(np.flatnonzero(np.diff(item)) + 1), len(item)]
        for start, end in itertools.pairwise(cuts):
            if start == end or item[start] < 0:
                continue
            i = order[item[start]]
            self._tokens[i] += token[start:end].tolist()
            self._logprobs[i] += logprob[start:end].tolist()
            if (how := int(ended[end - 1])) == NOT_FINITE:
                raise DivergedError(
                    f"branch {i} on trunk {self._work.trunk[i]}: the logits of its token "
                    f"{len(self._tokens[i])} are not finite; the weights have diverged"
                )
            if how != GOING:
                yield Drawn(i, self._tokens.pop(i), self._logprobs.pop(i), how)
