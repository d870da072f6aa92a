"""Assembles the tokens of branches from the steps of successive chunks.

Steps are kept until no unfinished branch has tokens in them. All operations are on whole arrays, so
a branch that ended costs little more than the copy of its tokens.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from vinejax.engine.decode import GOING

ROOM = 4  # chunks that fit new arrays in addition to the steps that are kept


class HostSteps(NamedTuple):
    """The steps of a chunk (`decode.ChunkSteps`) on the host, by shard and slot."""

    item: np.ndarray  # i32[Z, B, chunk] -1 where idle, waiting, or after the shard's last step
    token: np.ndarray  # i32[Z, B, chunk]
    logprob: np.ndarray  # f32[Z, B, chunk]
    ended: np.ndarray  # i32[Z, B, chunk]


class EndedBranches(NamedTuple):
    """The n branches that ended in a chunk, sorted by shard, by slot, then by step."""

    shard: np.ndarray  # i64[n]
    item: np.ndarray  # i32[n] index in the shard's queue
    outcome: np.ndarray  # i32[n] LENGTH, EOS, STOP or NOT_FINITE
    tokens: list[np.ndarray]  # i32[length] per branch, from all chunks
    logprobs: list[np.ndarray]  # f32[length] per branch


class Traces:
    """The steps of the unfinished branches, for all slots of all shards.

    The steps of a branch in its slot are consecutive, also across chunks. A branch that waits for a
    page misses at least one step and then restarts; its earlier steps do not count.
    """

    def __init__(self, shards: int, slots: int, chunk: int):
        # [Z, B, steps] of the chunks that are kept, without gaps between a shard's chunks.
        self._tokens = np.empty((shards, slots, ROOM * chunk), np.int32)
        self._logprobs = np.empty((shards, slots, ROOM * chunk), np.float32)
        self._num_steps = np.zeros(shards, np.int64)  # steps kept per shard
        self._item = np.full((shards, slots), -1)  # item of the slot's last step; -1 if idle
        self._begin = np.zeros((shards, slots), np.int64)  # step at which that item began

    def add(self, steps: HostSteps, step_counts: np.ndarray) -> EndedBranches:
        """Adds the next chunk, of `step_counts` steps per shard; returns the ended branches."""
        slots, chunk = steps.item.shape[1:]
        self._keep(steps, step_counts)
        # Flat indices of steps: all steps of one slot, then those of the next slot.
        ends = np.flatnonzero(steps.ended != GOING)
        is_begin = steps.item >= 0
        is_begin[..., 1:] &= steps.item[..., 1:] != steps.item[..., :-1]
        is_begin[..., 0] &= steps.item[..., 0] != self._item
        begins = np.flatnonzero(is_begin)

        slot = ends // chunk  # numbered over all shards
        begin = self._begin.ravel()[slot]
        before = self._num_steps - step_counts  # steps of each shard before this chunk
        # The last begin before each end, in this chunk or in an earlier one.
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

        def gathered(steps: np.ndarray) -> list[np.ndarray]:
            """For each branch that ended, its entries of `steps`.

            The entries are views of one array. Separate copies would take twice as long.
            """
            values = steps.reshape(-1).take(source)
            return [values[first:last] for first, last in bounds]

        items, outcomes = steps.item.ravel()[ends], steps.ended.ravel()[ends]
        tokens, logprobs = gathered(self._tokens), gathered(self._logprobs)
        ended = EndedBranches(slot // slots, items, outcomes, tokens, logprobs)
        # Several branches may begin in a slot. They are in order, so the last one is stored.
        slot = begins // chunk
        self._begin.ravel()[slot] = before[slot // slots] + begins % chunk
        shard, last = np.arange(len(step_counts)), np.maximum(step_counts - 1, 0)
        is_going = steps.ended[shard, :, last] == GOING
        item = np.where(is_going, steps.item[shard, :, last], -1)
        self._item = np.where(step_counts[:, None] > 0, item, self._item)
        return ended

    def running(self) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
        """(shard, item, its tokens so far, their log-probabilities) of each busy slot."""
        for z, b in np.argwhere(self._item >= 0).tolist():
            steps = z, b, slice(self._begin[z, b], self._num_steps[z])
            yield z, int(self._item[z, b]), self._tokens[steps], self._logprobs[steps]

    def move(self, slots: np.ndarray) -> None:
        """Renumbers slots before the next chunk: the new slot i is the old `slots[shard, i]`.

        `slots` are integers [Z, B]. Old slots that `slots` lacks must be idle.
        """
        shards = np.arange(len(slots))[:, None]
        self._tokens, self._logprobs, self._item, self._begin = (
            x[shards, slots] for x in (self._tokens, self._logprobs, self._item, self._begin)
        )

    def _keep(self, steps: HostSteps, step_counts: np.ndarray) -> None:
        """Stores the steps of the next chunk.

        If the arrays are full, new arrays replace them, without the steps that no branch needs.
        """
        if (self._num_steps + step_counts).max() > self._tokens.shape[2]:
            begin = np.where(self._item >= 0, self._begin, self._num_steps[:, None])
            dropped = begin.min(axis=1)  # number of steps that no unfinished branch needs
            needed = int((self._num_steps - dropped).max())
            room = needed + needed // 2 + ROOM * steps.item.shape[2]
            for name in ("_tokens", "_logprobs"):
                old = getattr(self, name)
                new = np.empty((*old.shape[:2], room), old.dtype)
                for shard, (first, end) in enumerate(zip(dropped, self._num_steps, strict=True)):
                    new[shard, :, : end - first] = old[shard, :, first:end]
                setattr(self, name, new)
            self._num_steps -= dropped
            self._begin -= dropped[:, None]
        for shard, (first, count) in enumerate(zip(self._num_steps, step_counts, strict=True)):
            self._tokens[shard, :, first : first + count] = steps.token[shard, :, :count]
            self._logprobs[shard, :, first : first + count] = steps.logprob[shard, :, :count]
        self._num_steps += step_counts
