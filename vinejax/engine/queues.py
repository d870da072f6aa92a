"""Makes the shards' queues on the mesh, and extends them by the branches of a feed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int

from vinejax.engine.branches import BranchSet
from vinejax.engine.decode import Queue
from vinejax.engine.memory import put_on_shards
from vinejax.engine.row_jobs import RowJob
from vinejax.engine.split import SHARDS
from vinejax.model.sharding import on_shards

BLOCK = 256  # number of entries that are added at a time


def make_queue(
    mesh: Mesh, branch_set: BranchSet, match: list[int], jobs: list[list[RowJob]], size: int
) -> Queue:
    """The shards' branches on the mesh, in the order of their jobs, padded to `size` per shard.

    `match` lists the automaton's state at the start of each branch. `size` is `Sizes.queue`.
    """
    return Queue(*(put_on_shards(mesh, x) for x in _fields(branch_set, match, jobs, size)))


def longer_queue(
    mesh: Mesh,
    queue: Queue,
    branch_set: BranchSet,
    match: list[int],
    jobs: list[list[RowJob]],
    total: np.ndarray,
) -> Queue:
    """The queue with the branches of further `jobs` after the earlier items of each shard.

    `total`, i64[Z], is the sum of the budgets of all earlier items. The entry after the last item
    is written, too, because it holds the sum of all budgets.
    """
    counts = [sum(len(job.items) for job in of_shard) for of_shard in jobs]
    size = -(-(max(counts) + 1) // BLOCK) * BLOCK
    *fields, before = _fields(branch_set, match, jobs, size)
    fields.append((before + total[:, None]).astype(np.int32))
    place = np.full((len(jobs), size), queue.position.shape[0], np.int32)
    for shard, (of_shard, count) in enumerate(zip(jobs, counts, strict=True)):
        if count:  # with the entry after the last item, which holds the sum of all budgets
            place[shard, : count + 1] = of_shard[0].first + np.arange(count + 1)
    for start in range(0, size, BLOCK):
        block = [put_on_shards(mesh, x[:, start : start + BLOCK]) for x in (*fields, place)]
        queue = _written(mesh, queue, Queue(*block[:-1]), block[-1])
    return queue


@jax.jit
def shortened(queue: Queue, most: Int[Array, " Q"]) -> Queue:
    """The queue in which the budget of each item is at most its entry of `most`.

    An item that has drawn as many tokens, or more, ends with the next token that it draws.
    """
    return queue._replace(budget=jnp.minimum(queue.budget, most))


def _fields(
    branch_set: BranchSet, match: list[int], jobs: list[list[RowJob]], size: int
) -> list[np.ndarray]:
    """The fields of a `Queue` as NumPy arrays [Z, size].

    Entries after the last item of a shard are padding.
    """
    shape = (len(jobs), size)
    position, token, budget, matches = np.ones((4, *shape), np.int32)
    seed = np.zeros((*shape, 2), np.uint32)
    for shard, jobs_of_shard in enumerate(jobs):
        for q, i in enumerate(i for job in jobs_of_shard for i in job.items):
            branch = branch_set.branches[i]
            position[shard, q] = branch.position
            token[shard, q] = branch_set.trunks[branch.trunk][branch.position - 1]
            budget[shard, q] = branch_set.budgets[i]
            matches[shard, q] = match[i]
            seed[shard, q] = branch.seed >> 32, branch.seed & 0xFFFFFFFF
    before = np.cumsum(budget, axis=1, dtype=np.int32) - budget
    return [position, token, seed, budget, matches, before]


@functools.partial(jax.jit, static_argnames="mesh")
def _written(mesh: Mesh, queue: Queue, block: Queue, place: Int[Array, " F"]) -> Queue:
    """The queue after each entry of `block` was written at its `place` in the queue.

    Entries with a place past the queue's end are dropped.
    """

    def one_shard(queue: Queue, block: Queue, place: jax.Array) -> Queue:
        return jax.tree.map(lambda old, new: old.at[place].set(new, mode="drop"), queue, block)

    return on_shards(mesh, one_shard, (SHARDS, SHARDS, SHARDS), SHARDS)(queue, block, place)
