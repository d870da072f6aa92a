"""Sums over the segments of rows that several sequences share.

A segment is a run of positions of a row with the same id, such as the tokens of one episode. No
other segment of the row has its id.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int, Shaped


@jax.jit(static_argnames="reverse")
def running_sums(
    x: Shaped[Array, "B T"], segment_ids: Int[Array, "B T"], reverse: bool = False
) -> Shaped[Array, "B T"]:
    """Σ x from the first position of a segment up to each of its positions, in the dtype of `x`.

    With `reverse` the sum from each position up to the last of its segment.
    """

    def add(
        left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """The sums of two neighbouring parts of a row, up to the last position of the second."""
        (before, segment_before), (x, segment) = left, right
        # Equal ids at both ends: no other segment lies between, since an id comes once in a row.
        return x + jnp.where(segment_before == segment, before, 0), segment

    return lax.associative_scan(add, (x, segment_ids), reverse=reverse, axis=1)[0]


@jax.jit
def segment_totals(x: Shaped[Array, "B T"], segment_ids: Int[Array, "B T"]) -> Shaped[Array, "B T"]:
    """Σ x over the segment of each position, in the dtype of `x`."""
    onwards = running_sums(x, segment_ids, reverse=True)
    return running_sums(x, segment_ids) + onwards - x


@jax.jit
def masked_segment_totals(
    x: Shaped[Array, "B T"],
    mask: Bool[Array, "B T"],
    segment_ids: Int[Array, "B T"] | None = None,
) -> Float32[Array, "B T"]:
    """Σ x over the True positions of the segment of each position; None: a row is one segment."""
    x = jnp.where(mask, jnp.float32(x), 0.0)
    if segment_ids is None:
        return jnp.broadcast_to(jnp.sum(x, axis=1, keepdims=True), x.shape)
    return segment_totals(x, segment_ids)


@jax.jit
def masked_segment_means(
    x: Shaped[Array, "B T"],
    mask: Bool[Array, "B T"],
    segment_ids: Int[Array, "B T"] | None = None,
) -> Float32[Array, "B T"]:
    """`masked_segment_totals` over the number of these positions; 0 where there is none."""
    count = masked_segment_totals(mask, mask, segment_ids)
    return masked_segment_totals(x, mask, segment_ids) / jnp.maximum(count, 1.0)


@jax.jit
def count_segments(mask: Bool[Array, "B T"], segment_ids: Int[Array, "B T"]) -> Int[Array, ""]:
    """The number of segments with a position where `mask` is True."""
    is_first = running_sums(mask.astype(jnp.int32), segment_ids) == 1
    return jnp.sum(mask & is_first)


@jax.jit(static_argnames="parts")
def part_of_segment(
    mask: Bool[Array, "B T"], segment_ids: Int[Array, "B T"], parts: int
) -> Int[Array, "B T"]:
    """The part, 0 .. parts - 1, in which each True position of `mask` lies; undefined off the mask.

    The True positions of a segment are divided in order into `parts` parts, as equal as can be.
    """
    ones = mask.astype(jnp.int32)
    before = running_sums(ones, segment_ids) - ones
    return before * parts // jnp.maximum(segment_totals(ones, segment_ids), 1)
