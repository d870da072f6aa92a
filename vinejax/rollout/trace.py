"""Reads the traces of decoding: which branches ended in a chunk, and all tokens of each of these.

Arrays of a chunk are kept as they came until no branch under way has tokens in them. Searching a
chunk is a few operations on whole arrays; only a branch that ended costs time of its own.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from vinejax.rollout.decode import GOING


class HostSteps(NamedTuple):
    """The steps of all slots of all shards in a chunk: `decode.Steps` on the host."""

    item: np.ndarray  # i32[steps, B]
    token: np.ndarray  # i32[steps, B]
    logprob: np.ndarray  # f32[steps, B]
    ended: np.ndarray  # i32[steps, B]


class EndedBranch(NamedTuple):
    """A branch that ended, and its tokens from all chunks."""

    slot: int  # of all shards
    item: int  # of the queue of the slot's shard
    tokens: list[int]
    logprobs: list[float]
    outcome: int  # LENGTH, EOS, STOP or NOT_FINITE


class _Chunk(NamedTuple):
    """What is kept of a chunk."""

    tokens: np.ndarray  # i32[steps, B]
    logprobs: np.ndarray  # f32[steps, B]
    taken: np.ndarray  # i64[B] steps of the slot's shard


class _Events(NamedTuple):
    """Slots and steps of a chunk at which something happened, sorted by slot, then by step."""

    slot: np.ndarray  # i64[n]
    step: np.ndarray  # i64[n]
    key: np.ndarray  # i64[n] increasing


class Traces:
    """The chunks that branches under way have passed through, for all slots of all shards.

    In a slot the steps of a branch are consecutive, over the ends of chunks too.
    """

    def __init__(self, num_slots: int):
        self._chunks: dict[int, _Chunk] = {}
        self._number = 0  # of the next chunk
        self._item = np.full(num_slots, -1)  # of the slot's last step; -1: idle
        # Where the item began: the number of the chunk, and the step in it.
        self._chunk = np.zeros(num_slots, np.int64)
        self._step = np.zeros(num_slots, np.int64)

    def add(self, steps: HostSteps, taken: np.ndarray) -> Iterator[EndedBranch]:
        """The branches that ended in the next chunk, sorted by slot, then by step.

        `taken` i64[B] says how many steps the shard of each slot took. The iterator must be run to
        its end.
        """
        item, tokens, logprobs, ended = steps
        self._chunks[self._number] = _Chunk(tokens, logprobs, taken)
        ends = _events(ended != GOING)
        is_begin = item >= 0
        is_begin[1:] &= item[1:] != item[:-1]
        is_begin[0] &= item[0] != self._item
        begins = _events(is_begin)

        # The last that began before an end: in this chunk, or an earlier one.
        nearest = np.searchsorted(begins.key, ends.key, side="right") - 1
        is_here = np.zeros(len(ends.slot), bool)
        if len(begins.slot):
            is_here = (nearest >= 0) & (begins.slot[nearest] == ends.slot)
        chunk, step = self._chunk[ends.slot], self._step[ends.slot]
        chunk[is_here], step[is_here] = self._number, begins.step[nearest[is_here]]
        outcomes, items = (x[ends.step, ends.slot] for x in (ended, item))
        columns = (ends.slot, ends.step, items, chunk, step, outcomes)
        for slot, end, i, first, begin, outcome in zip(*(x.tolist() for x in columns), strict=True):
            pair = self._between(slot, first, begin, end + 1)
            yield EndedBranch(slot, i, *pair, outcome)
        self._go_on(begins, np.where(ended == GOING, item, -1), taken)

    def keep(self, slots: np.ndarray) -> None:
        """From the next chunk on, slot i is what slot `slots[i]` was; the others are idle."""
        self._item, self._chunk, self._step = (
            x[slots] for x in (self._item, self._chunk, self._step)
        )
        self._chunks = {
            number: _Chunk(*(x[..., slots] for x in chunk))
            for number, chunk in self._chunks.items()
        }

    def _between(
        self, slot: int, first: int, begin: int, end: int
    ) -> tuple[list[int], list[float]]:
        """Tokens and log-probabilities of a slot from step `begin` of chunk `first` to step `end`
        of the chunk that was added last."""
        tokens, logprobs = [], []
        for number in range(first, self._number + 1):
            chunk = self._chunks[number]
            until = end if number == self._number else int(chunk.taken[slot])
            part = slice(begin if number == first else 0, until)
            tokens += chunk.tokens[part, slot].tolist()
            logprobs += chunk.logprobs[part, slot].tolist()
        return tokens, logprobs

    def _go_on(self, begins: _Events, item: np.ndarray, taken: np.ndarray) -> None:
        """Notes which items are under way and where they began; forgets chunks without any.

        `item` is -1 where an item ended.
        """
        is_last = np.ones(len(begins.slot), bool)
        is_last[:-1] = begins.slot[1:] != begins.slot[:-1]
        slots = begins.slot[is_last]
        self._chunk[slots], self._step[slots] = self._number, begins.step[is_last]
        last = item[np.maximum(taken - 1, 0), np.arange(len(taken))]
        self._item = np.where(taken > 0, last, self._item)
        self._number += 1
        under_way = self._chunk[self._item >= 0]
        oldest = int(under_way.min()) if len(under_way) else self._number
        for number in [number for number in self._chunks if number < oldest]:
            del self._chunks[number]


def _events(happened: np.ndarray) -> _Events:
    """Where a bool[steps, B] is true."""
    step, slot = np.nonzero(happened)
    key = slot * len(happened) + step
    order = np.argsort(key)
    return _Events(slot[order], step[order], key[order])
