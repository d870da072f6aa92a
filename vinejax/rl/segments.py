"""Sums over segments: the parts of a row that belong to different sequences.

A segment is a run of positions with the same id, such as the tokens of one episode. Ids differ
between the segments of a row.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, Shaped


@jax.jit(static_argnames="reverse")
def running_sums(
    x: Shaped[Array, "B T"], segment_ids: Int[Array, "B T"], reverse: bool = False
) -> Shaped[Array, "B T"]:
    """For each position, Σ x over its segment up to this position, in the dtype of `x`.

    With `reverse`, Σ x from each position up to the last position of its segment.
    """

    def add(
        left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Joins the results (sum, id) of two neighbouring parts of a row.

        The new id is that of the last position of `right`, and the new sum is over the positions of
        both parts in that position's segment.
        """
        (before, segment_before), (x, segment) = left, right
        # If the last ids of both parts are equal, no other segment lies between these positions.
        return x + jnp.where(segment_before == segment, before, 0), segment

    return lax.associative_scan(add, (x, segment_ids), reverse=reverse, axis=1)[0]


@jax.jit
def segment_totals(x: Shaped[Array, "B T"], segment_ids: Int[Array, "B T"]) -> Shaped[Array, "B T"]:
    """Σ x over the segment that each position belongs to, in the dtype of `x`."""
    onwards = running_sums(x, segment_ids, reverse=True)
    return running_sums(x, segment_ids) + onwards - x


@jax.jit
def count_segments(mask: Bool[Array, "B T"], segment_ids: Int[Array, "B T"]) -> Int[Array, ""]:
    """The number of segments with a position where `mask` is True."""
    is_first = running_sums(mask.astype(jnp.int32), segment_ids) == 1
    return jnp.sum(mask & is_first)


@jax.jit(static_argnames="parts")
def part_of_segment(
    mask: Bool[Array, "B T"], segment_ids: Int[Array, "B T"], parts: int
) -> Int[Array, "B T"]:
    """The number, 0 .. parts - 1, of the part of its segment that each position belongs to.

    The positions of a segment where `mask` is True are divided, in order, into `parts` parts of
    nearly equal size. The result is undefined at other positions.
    """
    ones = mask.astype(jnp.int32)
    before = running_sums(ones, segment_ids) - ones
    return before * parts // jnp.maximum(segment_totals(ones, segment_ids), 1)
