"""Reads the traces of decoding: which branches ended in a chunk, and all tokens of each of these.

Steps are kept until no branch under way has tokens in them. All that is done here is done to whole
arrays: a branch that ended costs little more than the copy of its tokens.
"""

import itertools
from typing import NamedTuple

import numpy as np

from vinejax.engine.decode import GOING

ROOM = 4  # chunks that there is room for at first, beside the steps that are needed


class HostSteps(NamedTuple):
    """The steps of a chunk on the host, by shard and slot: `decode.ChunkSteps`."""

    item: np.ndarray  # i32[Z, B, chunk] -1: idle, waiting, or after the shard's last step
    token: np.ndarray  # i32[Z, B, chunk]
    logprob: np.ndarray  # f32[Z, B, chunk]
    ended: np.ndarray  # i32[Z, B, chunk]


class EndedBranches(NamedTuple):
    """The n branches that ended in a chunk, sorted by shard, by slot, then by step."""

    shard: np.ndarray  # i64[n]
    item: np.ndarray  # i32[n] of the queue of the shard
    outcome: np.ndarray  # i32[n] LENGTH, EOS, STOP or NOT_FINITE
    tokens: list[np.ndarray]  # i32[length] of each, from all chunks
    logprobs: list[np.ndarray]  # f32[length] of each


class Traces:
    """The steps that branches under way have passed through, for all slots of all shards.

    The steps of a branch in its slot are consecutive, also across chunks. A branch that waits for a
    page misses at least one step and then begins again: its earlier steps do not count.
    """

    def __init__(self, shards: int, slots: int, chunk: int):
        # [Z, B, steps] of all chunks that are kept, each shard's without gaps.
        self._tokens = np.empty((shards, slots, ROOM * chunk), np.int32)
        self._logprobs = np.empty((shards, slots, ROOM * chunk), np.float32)
        self._kept = np.zeros(shards, np.int64)  # steps of each shard
        self._item = np.full((shards, slots), -1)  # of the slot's last step; -1: idle
        self._begin = np.zeros((shards, slots), np.int64)  # the step at which the item began

    def add(self, steps: HostSteps, taken: np.ndarray) -> EndedBranches:
        """The branches that ended in the next chunk; each shard took `taken` i64[Z] steps of it."""
        slots, chunk = steps.item.shape[1:]
        self._keep(steps, taken)
        # Steps are numbered through the chunk: all of one slot, then all of the next.
        ends = np.flatnonzero(steps.ended != GOING)
        is_begin = steps.item >= 0
        is_begin[..., 1:] &= steps.item[..., 1:] != steps.item[..., :-1]
        is_begin[..., 0] &= steps.item[..., 0] != self._item
        begins = np.flatnonzero(is_begin)

        slot = ends // chunk  # of all shards
        begin = self._begin.ravel()[slot]
        before = self._kept - taken  # steps of each shard before this chunk
        # The last begin before each end: in this chunk, or else in an earlier one.
        nearest = np.searchsorted(begins, ends, side="right") - 1
        if len(begins):
            is_here = (nearest >= 0) & (begins[nearest] // chunk == slot)
            begin = np.where(is_here, before[slot // slots] + begins[nearest] % chunk, begin)
        end = before[slot // slots] + ends % chunk + 1
        length = end - begin
        past = np.cumsum(length)
        start = slot * self._tokens.shape[2] + begin
        source = np.repeat(start - past + length, length) + np.arange(length.sum())
        bounds = list(itertools.pairwise([0, *past.tolist()]))

        def gathered(kept: np.ndarray) -> list[np.ndarray]:
            """One gather, and views of it: a copy for each branch takes twice as long."""
            found = kept.reshape(-1).take(source)
            return [found[first:last] for first, last in bounds]

        items, outcomes = steps.item.ravel()[ends], steps.ended.ravel()[ends]
        tokens, logprobs = gathered(self._tokens), gathered(self._logprobs)
        ended = EndedBranches(slot // slots, items, outcomes, tokens, logprobs)
        # Several branches may begin in a slot: they are in order, and the last one stays.
        slot = begins // chunk
        self._begin.ravel()[slot] = before[slot // slots] + begins % chunk
        shard, last = np.arange(len(taken)), np.maximum(taken - 1, 0)
        is_going = steps.ended[shard, :, last] == GOING
        item = np.where(is_going, steps.item[shard, :, last], -1)
        self._item = np.where(taken[:, None] > 0, item, self._item)
        return ended

    def move(self, slots: np.ndarray) -> None:
        """From the next chunk on, slot i of a shard has the branch of slot `slots[shard, i]`.

        `slots` are integers [Z, B]. No branch may be under way in a slot that they leave out.
        """
        shards = np.arange(len(slots))[:, None]
        self._tokens, self._logprobs, self._item, self._begin = (
            x[shards, slots] for x in (self._tokens, self._logprobs, self._item, self._begin)
        )

    def _keep(self, steps: HostSteps, taken: np.ndarray) -> None:
        """Adds the steps of the next chunk; without room for them, in new and larger arrays."""
        if (self._kept + taken).max() > self._tokens.shape[2]:
            begin = np.where(self._item >= 0, self._begin, self._kept[:, None])
            dropped = begin.min(axis=1)  # steps that no branch under way needs
            needed = int((self._kept - dropped).max())
            room = needed + needed // 2 + ROOM * steps.item.shape[2]
            for name in ("_tokens", "_logprobs"):
                old = getattr(self, name)
                new = np.empty((*old.shape[:2], room), old.dtype)
                for shard, (first, end) in enumerate(zip(dropped, self._kept, strict=True)):
                    new[shard, :, : end - first] = old[shard, :, first:end]
                setattr(self, name, new)
            self._kept -= dropped
            self._begin -= dropped[:, None]
        for shard, (first, count) in enumerate(zip(self._kept, taken, strict=True)):
            self._tokens[shard, :, first : first + count] = steps.token[shard, :, :count]
            self._logprobs[shard, :, first : first + count] = steps.logprob[shard, :, :count]
        self._kept += taken
