"""Reads the trace of a chunk: the branches that ended in the chunk, and the counts of its steps.

The host reads a trace while the devices decode the next chunk. To keep the devices busy, reading
must take less time than decoding; benchmarks/collect.py measures this time.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from vinejax.core.errors import DivergedError
from vinejax.engine.branches import BranchSet
from vinejax.engine.decode import GOING, NOT_FINITE
from vinejax.engine.stats import EngineStats
from vinejax.engine.trace import HostSteps, Traces


class DecodedBranch(NamedTuple):
    """A branch with its decoded tokens.

    `AcceptedPrefixes.with_prefix` adds the tokens that the branch accepted from its trunk.
    """

    branch: int
    tokens: np.ndarray  # i32[length]
    logprobs: np.ndarray  # f32[length]
    ended: int  # LENGTH, EOS or STOP; GOING before the branch has ended


class Collector:
    """Follows the branches of a phase by the traces of its chunks.

    `order` lists the branches of each shard's queue. `num_accepted` returns the number of tokens
    that a branch accepted from its trunk (`accept.py`), which come before its decoded tokens.
    """

    def __init__(
        self,
        branch_set: BranchSet,
        order: list[list[int]],
        slots: int,
        chunk: int,
        stats: EngineStats,
        num_accepted: Callable[[int], int],
    ):
        self._branch_set, self._stats, self._num_accepted = branch_set, stats, num_accepted
        self._order: list[list[int]] = [[] for _ in order]
        self.not_ended = np.zeros(len(order), np.int64)  # number of branches per shard
        self.add_branches(order)
        self._traces = Traces(len(order), slots, chunk)
        # Tokens of all steps, and tokens of the branches that have ended.
        self._num_decoded = self._num_ended = 0

    def add_branches(self, order: list[list[int]]) -> None:
        """Follows further branches; `order` lists those appended to each shard's queue."""
        for of_shard, more in zip(self._order, order, strict=True):
            of_shard += more
        self.not_ended += [len(more) for more in order]

    def running(self) -> Iterator[DecodedBranch]:
        """The branches that are in slots, with their decoded tokens so far and outcome GOING."""
        for shard, item, tokens, logprobs in self._traces.running():
            yield DecodedBranch(self._order[shard][item], tokens, logprobs, GOING)

    def place_of(self, branch: int) -> tuple[int, int]:
        """(shard, item) of a branch."""
        shard = next(z for z, of_shard in enumerate(self._order) if branch in of_shard)
        return shard, self._order[shard].index(branch)

    def move(self, slots: np.ndarray) -> None:
        """Renumbers slots before the next chunk: the new slot i is the old `slots[shard, i]`."""
        self._traces.move(slots)

    def add(self, steps: HostSteps) -> Iterator[DecodedBranch]:
        """Adds the steps of the next chunk, and returns the branches that ended in it.

        Raises DivergedError with the branch and its trunk if logits were not finite.
        """
        ended = self._traces.add(steps, self._count(steps))
        places = zip(ended.shard.tolist(), ended.item.tolist(), strict=True)
        branches = [self._order[shard][item] for shard, item in places]
        if len(diverged := np.flatnonzero(ended.outcome == NOT_FINITE)):
            n = int(diverged[0])
            branch = branches[n]
            number = self._num_accepted(branch) + len(ended.tokens[n])
            trunk = self._branch_set.branches[branch].trunk
            raise DivergedError(
                f"branch {branch} on trunk {trunk}: the logits of its token {number} are not "
                "finite; the weights have diverged"
            )
        self._num_ended += sum(map(len, ended.tokens))
        if not self.not_ended.any():  # any other decoded tokens are of restarted branches
            self._stats.restarted_tokens += self._num_decoded - self._num_ended
            self._num_decoded = self._num_ended = 0
        outcomes = ended.outcome.tolist()
        return map(DecodedBranch, branches, ended.tokens, ended.logprobs, outcomes)

    def _count(self, steps: HostSteps) -> np.ndarray:
        """Adds a chunk's steps to the statistics, and returns each shard's step count, i64[Z]."""
        slots = steps.item.shape[1]
        num_busy = (steps.item >= 0).sum(axis=1, dtype=np.int32)  # [Z, chunk]
        num_ended = (steps.ended != GOING).sum(axis=1, dtype=np.int32)
        step_counts = (num_busy > 0).sum(axis=1)
        # A branch that has not ended before a step is in a slot or waits.
        ended_before = np.cumsum(num_ended, axis=1) - num_ended
        waiting = self.not_ended[:, None] - ended_before - num_busy
        queued = (waiting > 0) & (num_busy > 0)
        self.not_ended -= num_ended.sum(axis=1)
        self._stats.decode_steps += int(step_counts.max())
        self._stats.slot_steps += int(step_counts.sum()) * slots
        decoded = int(num_busy.sum())
        self._num_decoded += decoded
        self._stats.decoded_tokens += decoded
        self._stats.queued_slot_steps += int(queued.sum()) * slots
        self._stats.queued_tokens += int(num_busy[queued].sum())
        return step_counts
