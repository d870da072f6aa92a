"""Offshoots: branches that begin on another one while it is under way, with its keys and values.

A continuation of a running solution does not wait for the solution's end, and computes no trunk:
between two chunks the columns of the tokens before it are copied from slot to slot, and it reads
the row that its parent reads. So the longest chain of steps is that of one response, and not of a
solution and a continuation after it.

An offshoot begins where its parent's shard has an idle slot, and the row a free lane. Until then
it waits; once its parent has ended, it becomes a branch on the parent's whole sequence, like any
other that is fed. Its tokens are the same in either case, but for rounding.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Bool

from vinejax.engine import split
from vinejax.engine.assign import Load
from vinejax.engine.branches import Branch, Offshoot, Work
from vinejax.engine.cache import Copies, Sizes
from vinejax.engine.collect import Drawn
from vinejax.engine.decode import Queue, Slots, specs_of
from vinejax.engine.intake import Intake
from vinejax.engine.memory import put_on_shards
from vinejax.engine.phase import Phase, Programs, Started
from vinejax.engine.queues import longer_queue
from vinejax.engine.repeats import REACH
from vinejax.engine.split import SHARDS
from vinejax.engine.stats import EngineStats
from vinejax.engine.stop import first_states
from vinejax.model.sharding import on_shards

AT_ONCE = 8  # offshoots of a shard that one call of the program begins


class Requests(NamedTuple):
    """Offshoots that a shard is asked to begin."""

    parent: jax.Array  # i32[F] item of the queue; -1 where nothing is asked for
    item: jax.Array  # i32[F] their own
    age: jax.Array  # i32[F] tokens of the parent before them
    token: jax.Array  # i32[F] the last token before them, of parent or trunk


@functools.partial(jax.jit, static_argnames=("mesh", "sizes"), donate_argnames="slots")
def begin(
    mesh: Mesh, sizes: Sizes, queue: Queue, slots: Slots, requests: Requests
) -> tuple[Slots, Bool[Array, " F"]]:
    """Begins offshoots in idle slots; also returns which of them begin.

    One does if its parent is in a slot, and a slot of the shard and a lane of its row are free.
    """

    def one_shard(queue: Queue, slots: Slots, requests: Requests):
        cache = slots.cache

        def begin_one(slots: Slots, request: Requests):
            parent, target = jnp.argmax(slots.item == request.parent), jnp.argmax(slots.item < 0)
            row = slots.row[parent]
            on_row = jnp.sum((slots.row == row) & (slots.item >= 0))
            is_there = (request.parent >= 0) & (slots.item[parent] == request.parent)
            begins = is_there & (slots.item[target] < 0) & (on_row < sizes.lanes)
            target = jnp.where(begins, target, slots.item.shape[0])
            age = jnp.where(begins, request.age, 0)
            copy = Copies(parent, target, slots.age[parent], age)

            def put(x: jax.Array, new: jax.Array) -> jax.Array:
                return x.at[target].set(new, mode="drop")

            slots = slots._replace(
                item=put(slots.item, request.item),
                row=put(slots.row, row),
                age=put(slots.age, age),
                token=put(slots.token, request.token),
                match=put(slots.match, queue.match[request.item]),
            )
            return slots, (copy, begins)

        slots, (copies, begun) = lax.scan(begin_one, slots._replace(cache=None), requests)
        return slots._replace(cache=cache.copied(copies)), begun

    specs = specs_of(slots, sizes.slots)
    run = on_shards(mesh, one_shard, (SHARDS, specs, SHARDS), (specs, SHARDS))
    slots, begun = run(queue, slots, requests)
    return slots, split.readable(mesh, begun)


class _Waiting(NamedTuple):
    """An offshoot that has not begun."""

    branch: int
    parent: int
    age: int  # tokens of the parent before it
    item: int  # of its shard's queue


class OffshootPhase(Phase):
    """A phase whose feed gives offshoots of the branches that it began with at their trunks' ends.

    An offshoot is in the queue as a branch in its parent's place, of which the first tokens were
    drawn, but among no row's items. If it cannot begin, it is there once more, as any other.
    """

    def __init__(
        self,
        programs: Programs,
        work: Work,
        loads: list[list[Load]],
        stats: EngineStats,
        intake: Intake,
    ):
        super().__init__(programs, work, loads, stats, intake)
        # Of each branch that may be a parent: its shard and its item.
        self._place: dict[int, tuple[int, int]] = {}
        for shard, of_shard in enumerate(loads):
            for item, i in enumerate(i for load in of_shard for i in load.items):
                if work.branches[i].position == len(work.trunks[work.branches[i].trunk]):
                    self._place[i] = shard, item
        self._ended: dict[int, np.ndarray] = {}  # the tokens of parents that have ended
        self._newly_ended: list[int] = []
        self._left: list[list[_Waiting]] = [[] for _ in loads]  # by shard
        # What shards were asked to begin since the last chunk was read, and whether it did.
        self._asked: list[tuple[list[list[_Waiting]], jax.Array]] = []
        self._whole: set[int] = set()  # trunks that are sequences of parents
        assert intake.feed is not None
        self._more = intake.feed.branches  # offshoots that may still be given

    def trunk_logprobs(self) -> list[np.ndarray]:
        every = enumerate(super().trunk_logprobs())
        return [logprobs for trunk, logprobs in every if trunk not in self._whole]

    def _collect(self, started: Started) -> list[Drawn]:
        ended = super()._collect(started)
        parents = [x for x in ended if x.branch in self._place]
        self._ended |= {x.branch: x.tokens for x in parents}
        self._newly_ended += [x.branch for x in parents]
        return ended

    def _admit(self) -> Iterator[Drawn]:
        self._settle()
        yield from super()._admit()
        if self._intake.is_open and not self._intake.holds:
            self._take_offshoots()
        self._load_left()
        if self._intake.is_open:
            self._begin()
        elif any(self._left):
            rule = "`more` gave None while branches on which others are to begin are under way"
            raise ValueError(f"feed: {rule}")

    @property
    def _num_reserved(self) -> int:
        """All offshoots may be in one shard's queue, and twice: those that wait are there once."""
        return 2 * self._more + sum(map(len, self._left))

    # --- what the caller gives ---

    def _take_offshoots(self) -> None:
        """Takes offshoots of branches that have just ended, or whose shards have idle slots."""
        assert self._intake.feed is not None and self._intake.feed.offshoots is not None
        drawn, self._newly_ended = {i: self._ended[i] for i in self._newly_ended}, []
        for shard, of_shard in enumerate(self._collector.under_way()):
            idle = self._sizes.slots - len(of_shard) - len(self._left[shard])
            if idle > 0 and not self._waiting[shard]:
                drawn |= {i: tokens for i, tokens in of_shard.items() if i in self._place}
        new: list[list[tuple[int, Offshoot]]] = [[] for _ in self._left]
        for offshoot in self._intake.feed.offshoots(drawn):
            branch = self._numbered(offshoot, drawn)
            new[self._place[offshoot.parent][0]].append((branch, offshoot))
        if any(new):
            self._put_into_queue(new)

    def _numbered(self, offshoot: Offshoot, drawn: Mapping[int, np.ndarray]) -> int:
        """Adds an offshoot to `work` under the next number, on a trunk of its own.

        Raises ValueError for one that cannot begin on its parent.
        """
        parent, age, seed, max_tokens = offshoot
        what = f"offshoot of branch {parent} after {age} tokens"
        if not self._more:
            raise ValueError(f"{what}: the feed's `branches` must be at least as many as are given")
        if parent not in drawn or not 0 <= age <= len(drawn[parent]):
            raise ValueError(f"{what}: they must be among those that the branch is said to have")
        work, whole = self.work, self.work.branches[parent]
        trunk = work.trunks[whole.trunk][: whole.position] + drawn[parent][:age].tolist()
        budget = min(max_tokens, self._model.cfg.context - len(trunk))
        if not 1 <= budget <= self._sizes.width - age:
            rule = f"must be 1 to {self._sizes.width - age}, what its parent has left"
            raise ValueError(f"{what}: its budget, {budget}, {rule}")
        if len(trunk) > self._sizes.columns:
            raise ValueError(f"{what}: the feed's `longest` must be at least {len(trunk)} tokens")
        response = whole.position if whole.response is None else whole.response
        work.add(Work([trunk], [Branch(0, len(trunk), seed, response)], [budget], 0, [False]))
        self._more -= 1
        return len(work.branches) - 1

    def _put_into_queue(self, new: list[list[tuple[int, Offshoot]]]) -> None:
        """Puts offshoots of each shard into its queue, and into the line of those that wait."""
        queued, matches, loads = Work([], [], [], 0, []), [], []
        for shard, of_shard in enumerate(new):
            first = len(queued.branches)
            for i, (_, age, seed, _) in of_shard:
                branch, budget = self.work.branches[i], age + self.work.budgets[i]
                trunks = [self.work.trunks[branch.trunk]]
                alone = Work(trunks, [dataclasses.replace(branch, trunk=0)], [budget], 0, [False])
                matches += first_states(self._programs.table, alone)
                alone.branches[0] = Branch(0, branch.position - age, seed)
                queued.add(alone)
            items = [*range(first, len(queued.branches))]
            loads.append([Load(0, items, sum(queued.budgets[first:]), int(self._queued[shard]))])
        self._queue = longer_queue(self._mesh, self._queue, queued, matches, loads, self._budgets)
        order = [[branch for branch, _ in of_shard] for of_shard in new]
        self._repeats.add_branches(order)
        self._collector.add_branches(order)
        for shard, of_shard in enumerate(new):
            self._left[shard] += [
                _Waiting(branch, parent, age, item)
                for item, (branch, (parent, age, *_)) in enumerate(of_shard, self._queued[shard])
            ]
        self._queued = self._queued + [len(of_shard) for of_shard in new]
        self._budgets += [of_shard[0].work for of_shard in loads]

    # --- offshoots that wait ---

    def _begin(self) -> None:
        """Asks shards to begin what waits, after the chunk that they decode."""
        longest = max(map(len, self._left))
        for start in range(0, longest, AT_ONCE):
            asked = [of_shard[start : start + AT_ONCE] for of_shard in self._left]
            fields = np.zeros((len(Requests._fields), len(asked), AT_ONCE), np.int32)
            fields[0] = -1
            for shard, of_shard in enumerate(asked):
                for n, (branch, parent, age, item) in enumerate(of_shard):
                    token = self.work.trunks[self.work.branches[branch].trunk][-1]
                    fields[:, shard, n] = self._place[parent][1], item, age, token
            requests = Requests(*(put_on_shards(self._mesh, x) for x in fields))
            self._slots, begun = begin(self._mesh, self._sizes, self._queue, self._slots, requests)
            self._asked.append((asked, begun))

    def _settle(self) -> None:
        """Reads which offshoots have begun."""
        gone: set[int] = set()
        for asked, begun in self._asked:
            by_shard = np.asarray(jax.device_get(begun)).reshape(len(asked), -1)
            for of_shard, have_begun in zip(asked, by_shard.tolist(), strict=True):
                pairs = zip(of_shard, have_begun, strict=False)  # the rest is padding
                gone |= {x.branch for x, has_begun in pairs if has_begun}
        self._left = [[x for x in of_shard if x.branch not in gone] for of_shard in self._left]
        self._stats.offshoots += len(gone)
        self._asked = []

    def _load_left(self) -> None:
        """Makes offshoots whose parents have ended branches on these parents' sequences."""
        for shard, of_shard in enumerate(self._left):
            by_parent: dict[int, list[int]] = {}
            for x in of_shard:
                if x.parent in self._ended:
                    by_parent.setdefault(x.parent, []).append(x.branch)
            self._left[shard] = [x for x in of_shard if x.parent not in by_parent]
            for parent, branches in by_parent.items():
                self._collector.not_ended[shard] -= len(branches)  # `_enqueue` counts them again
                self._load_on(parent, branches)

    def _load_on(self, parent: int, numbers: list[int]) -> None:
        """Makes branches of these numbers branches on the whole sequence of their parent."""
        work, whole = self.work, self.work.branches[parent]
        longest = max(work.branches[i].position for i in numbers)
        reach = longest + REACH if self._programs.skips_repeats else longest
        sequence = work.trunks[whole.trunk][: whole.position] + self._ended[parent].tolist()
        sequence, trunk = sequence[: min(reach, self._sizes.columns)], len(work.trunks)
        self._whole.add(trunk)
        work.add(Work([sequence], [], [], 0, [False]))
        for i in numbers:
            work.branches[i] = dataclasses.replace(work.branches[i], trunk=trunk)
        branches = [dataclasses.replace(work.branches[i], trunk=0) for i in numbers]
        more = Work([sequence], branches, [work.budgets[i] for i in numbers], longest, [False])
        self._enqueue(more, self._loads_of(more), trunk, numbers)
