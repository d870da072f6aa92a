"""Pages, which hold the keys and values of the slots' own tokens for the kernels.

A shard has one pool of pages. A page has BLOCK columns in every layer. A slot takes a page when it
begins a new block, and returns all its pages when its branch ends. Memory is therefore needed for
the tokens drawn so far, not for the largest budget of every slot.

If a step needs more pages than are free, the branches with the fewest tokens return their pages and
wait. Such a branch restarts in the same slot once a page is free. It draws the same tokens, as a
draw depends only on its place. The branch with the most tokens never waits, so all branches end.
In the worst case all branches use up their budgets. The number of slots that decode to the end at a
time is then the number of whole branches that fit the pages, about as many as a ring in the same
memory would have.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from vinejax.engine.tpu.schedule import BLOCK


class Pages(NamedTuple):
    """The P pages of a shard. A slot holds one page per block in which it has columns.

    A slot that has drawn `age` tokens has columns in its first ceil(age / BLOCK) blocks.
    """

    of_slot: jax.Array  # i32[B, blocks] page of each block; undefined for blocks without columns
    free: jax.Array  # i32[P] `num_free` free pages, then undefined entries
    num_free: jax.Array  # i32[1] number of free pages


def take_pages(
    pages: Pages, occupied: Bool[Array, " B"], age: Int[Array, " B"]
) -> tuple[Pages, Bool[Array, " B"]]:
    """Takes pages for a step, which writes column `age` of each occupied slot.

    Also returns bool[B], which is True for occupied slots that must wait instead of taking part in
    the step. These slots hold no pages.
    """
    needs = occupied & (age % BLOCK == 0)
    waits = lax.cond(
        needs.sum() > pages.num_free[0],
        lambda: _to_wait(pages.num_free[0], occupied, needs, age),
        lambda: jnp.zeros_like(needs),
    )
    pages = give_back(pages, waits, age)
    takes = needs & ~waits
    taken = pages.free[pages.num_free - jnp.cumsum(takes)]
    is_new = takes[:, None] & (age[:, None] // BLOCK == jnp.arange(pages.of_slot.shape[1]))
    return pages._replace(
        of_slot=jnp.where(is_new, taken[:, None], pages.of_slot),
        num_free=pages.num_free - takes.sum(),
    ), waits


def give_back(pages: Pages, chosen: Bool[Array, " B"], age: Int[Array, " B"]) -> Pages:
    """Frees the pages of the chosen slots, each of which has drawn `age` tokens."""
    is_freed = chosen[:, None] & (jnp.arange(pages.of_slot.shape[1]) < _num_held(age)[:, None])
    place = pages.num_free + jnp.cumsum(is_freed) - 1
    place = jnp.where(is_freed.ravel(), place, pages.free.shape[0])
    return pages._replace(
        free=pages.free.at[place].set(pages.of_slot.ravel(), mode="drop"),
        num_free=pages.num_free + is_freed.sum(),
    )


def _num_held(age: Int[Array, " B"]) -> Int[Array, " B"]:
    """The number of pages that each slot holds before a step that writes its column `age`."""
    return -(-age // BLOCK)


def _to_wait(
    num_free: Int[Array, ""],
    occupied: Bool[Array, " B"],
    needs: Bool[Array, " B"],
    age: Int[Array, " B"],
) -> Bool[Array, " B"]:
    """The slots that must wait for pages.

    The slots with the fewest tokens are chosen first, and no more slots than necessary.
    """
    order = jnp.argsort(jnp.where(occupied, age, jnp.iinfo(jnp.int32).max))
    held, needed = jnp.where(occupied, _num_held(age), 0)[order], needs[order].astype(jnp.int32)
    # Free pages, and pages that the other slots need, if all slots before this one wait.
    free = num_free + jnp.cumsum(held) - held
    wanted = needed.sum() - (jnp.cumsum(needed) - needed)
    return jnp.zeros_like(needs).at[order].set(wanted > free)
