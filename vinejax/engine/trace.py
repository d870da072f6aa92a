"""Reads the traces of decoding: which branches ended in a chunk, and all tokens of each of these.

Chunks are kept until no branch under way has tokens in them. All that is done here is done to whole
arrays: a branch that ended costs little more than the copy of its tokens.
"""

import itertools
from typing import NamedTuple

import numpy as np

from vinejax.engine.decode import GOING

ROOM = 4  # chunks that there is room for at first


class HostSteps(NamedTuple):
    """The steps of a chunk on the host, by shard and slot: `decode.Steps`."""

    item: np.ndarray  # i32[Z, B, chunk] -1: idle, waiting, or after the shard's last step
    token: np.ndarray  # i32[Z, B, chunk]
    logprob: np.ndarray  # f32[Z, B, chunk]
    ended: np.ndarray  # i32[Z, B, chunk]


class Ended(NamedTuple):
    """The n branches that ended in a chunk, sorted by shard, by slot, then by step."""

    shard: np.ndarray  # i64[n]
    item: np.ndarray  # i32[n] of the queue of the shard
    outcome: np.ndarray  # i32[n] LENGTH, EOS, STOP or NOT_FINITE
    tokens: list[np.ndarray]  # i32[length] of each, from all chunks
    logprobs: list[np.ndarray]  # f32[length] of each


class _Runs(NamedTuple):
    """For n branches the first and the last step of each; the last is in the newest chunk."""

    slot: np.ndarray  # i64[n] of all shards
    chunk: np.ndarray  # i64[n] the number of the chunk where it began
    begin: np.ndarray  # i64[n] the step in that chunk
    end: np.ndarray  # i64[n] the step after its last


class Traces:
    """The chunks that branches under way have passed through, for all slots of all shards.

    The steps of a branch in its slot are consecutive, also across chunks. A branch that waits for a
    page misses at least one step and then begins again: its earlier steps do not count.
    """

    def __init__(self, shards: int, slots: int, chunk: int):
        # [chunks, Z, B, chunk, 2] a token and the bits of its log-probability, so that both are one
        # copy; chunk number n lies at n modulo the chunks that there is room for.
        self._kept = np.empty((ROOM, shards, slots, chunk, 2), np.int32)
        self._taken = np.zeros((ROOM, shards), np.int64)  # of each chunk in `_kept`, steps by shard
        self._number = 0  # of the next chunk
        self._item = np.full((shards, slots), -1)  # of the slot's last step; -1: idle
        # Where the item began: the number of the chunk, and the step in it.
        self._chunk = np.zeros((shards, slots), np.int64)
        self._step = np.zeros((shards, slots), np.int64)

    def add(self, steps: HostSteps, taken: np.ndarray) -> Ended:
        """The branches that ended in the next chunk; each shard took `taken` i64[Z] steps of it."""
        _, slots, chunk = steps.item.shape
        self._keep_chunk(steps, taken)
        # Steps are numbered through the chunk: all of one slot, then all of the next.
        ends = np.flatnonzero(steps.ended != GOING)
        is_begin = steps.item >= 0
        is_begin[..., 1:] &= steps.item[..., 1:] != steps.item[..., :-1]
        is_begin[..., 0] &= steps.item[..., 0] != self._item
        begins = np.flatnonzero(is_begin)

        slot = ends // chunk
        first, begin = self._chunk.ravel()[slot], self._step.ravel()[slot]
        # The last begin before each end: in this chunk, or else in an earlier one.
        nearest = np.searchsorted(begins, ends, side="right") - 1
        if len(begins):
            is_here = (nearest >= 0) & (begins[nearest] // chunk == slot)
            first = np.where(is_here, self._number, first)
            begin = np.where(is_here, begins[nearest] % chunk, begin)
        tokens, logprobs = self._read(_Runs(slot, first, begin, ends % chunk + 1))
        items, outcomes = steps.item.ravel()[ends], steps.ended.ravel()[ends]
        self._go_on(steps, taken, begins)
        return Ended(slot // slots, items, outcomes, tokens, logprobs)

    def move(self, slots: np.ndarray) -> None:
        """From the next chunk on, slot i of a shard has the branch of slot `slots[shard, i]`.

        `slots` are integers [Z, B]. No branch may be under way in a slot that they leave out.
        """
        shards = np.arange(len(slots))[:, None]
        self._kept = self._kept[:, shards, slots]
        self._item, self._chunk, self._step = (
            x[shards, slots] for x in (self._item, self._chunk, self._step)
        )

    def _keep_chunk(self, steps: HostSteps, taken: np.ndarray) -> None:
        """Puts the next chunk in the place of one that no branch under way needs."""
        under_way = self._chunk[self._item >= 0]
        oldest = int(under_way.min()) if len(under_way) else self._number
        room, needed = len(self._kept), self._number - oldest + 1
        if needed > room:
            larger = max(needed, room + room // 2)
            kept = np.empty((larger, *self._kept.shape[1:]), np.int32)
            of_shards = np.zeros((larger, self._taken.shape[1]), np.int64)
            for number in range(oldest, self._number):
                kept[number % larger] = self._kept[number % room]
                of_shards[number % larger] = self._taken[number % room]
            self._kept, self._taken = kept, of_shards
        place = self._number % len(self._kept)
        self._kept[place, ..., 0] = steps.token
        self._kept[place, ..., 1] = steps.logprob.view(np.int32)
        self._taken[place] = taken

    def _read(self, runs: _Runs) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Tokens and log-probabilities of each run."""
        room, _, slots, chunk, _ = self._kept.shape
        # One entry per run and chunk that it passes through, the chunks of a run in order.
        parts = self._number - runs.chunk + 1
        past = np.cumsum(parts)
        run = np.repeat(np.arange(len(parts)), parts)
        number = runs.chunk[run] + np.arange(len(run)) - np.repeat(past - parts, parts)
        slot, place = runs.slot[run], number % room
        begin = np.where(number == runs.chunk[run], runs.begin[run], 0)
        end = np.where(number == self._number, runs.end[run], self._taken[place, slot // slots])
        length = end - begin
        # One gather of 8 bytes a token, then views of it: a copy for each run takes twice as long.
        before = np.cumsum(length) - length
        start = (place * self._item.size + slot) * chunk + begin
        total = int(length.sum())
        source = np.repeat(start - before, length)
        source += np.arange(total)
        pairs = self._flat().take(source).view(np.int32).reshape(-1, 2)
        tokens, logprobs = pairs[:, 0], pairs.view(np.float32)[:, 1]
        bounds = [*before[past - parts].tolist(), total]
        return (
            [tokens[first:last] for first, last in itertools.pairwise(bounds)],
            [logprobs[first:last] for first, last in itertools.pairwise(bounds)],
        )

    def _flat(self) -> np.ndarray:
        """All steps that are kept, i64: a token and a log-probability in each."""
        return self._kept.reshape(-1).view(np.int64)

    def _go_on(self, steps: HostSteps, taken: np.ndarray, begins: np.ndarray) -> None:
        """Notes which items are under way and where they began."""
        chunk = steps.item.shape[2]
        slot = begins // chunk  # in their order, so that the last in a slot counts
        self._chunk.ravel()[slot], self._step.ravel()[slot] = self._number, begins % chunk
        shard, last = np.arange(len(taken)), np.maximum(taken - 1, 0)
        is_going = steps.ended[shard, :, last] == GOING
        item = np.where(is_going, steps.item[shard, :, last], -1)
        self._item = np.where(taken[:, None] > 0, item, self._item)
        self._number += 1
