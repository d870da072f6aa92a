"""Sums over segments against a loop, and losses of whole solutions that share a row."""

import jax
import jax.numpy as jnp
import numpy as np

from vinejax.rl.ratio_losses import shared_mean
from vinejax.rl.segments import (
    count_segments,
    part_of_segment,
    running_sums,
    segment_totals,
)

# The third row has a segment of one position, and ids in no order.
IDS = np.array([[1, 1, 1, 2, 2, 3, 0, 0], [1] * 8, [4, 2, 2, 1, 1, 1, 1, 0], [0] * 8], np.int32)


def runs(ids: np.ndarray) -> list[tuple[int, slice]]:
    """The segments as (row, positions)."""
    found = []
    for b, row in enumerate(ids):
        starts = [t for t in range(len(row)) if t == 0 or row[t] != row[t - 1]]
        ends = [*starts[1:], len(row)]
        found += [(b, slice(start, end)) for start, end in zip(starts, ends, strict=True)]
    return found


def test_sums_equal_the_loop():
    x = np.random.default_rng(0).normal(size=IDS.shape).astype(np.float32)
    upto, onwards, totals = (np.zeros_like(x) for _ in range(3))
    for b, at in runs(IDS):
        upto[b, at] = np.cumsum(x[b, at])
        onwards[b, at] = np.cumsum(x[b, at][::-1])[::-1]
        totals[b, at] = x[b, at].sum()
    np.testing.assert_allclose(running_sums(x, IDS), upto, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(running_sums(x, IDS, reverse=True), onwards, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(segment_totals(x, IDS), totals, rtol=1e-5, atol=1e-6)
    assert segment_totals(jnp.ones(IDS.shape, jnp.int32), IDS).dtype == jnp.int32


def test_means_read_only_the_mask_and_are_0_without_any():
    rng = np.random.default_rng(1)
    mask = rng.random(IDS.shape) < 0.5
    mask[0, 3:5] = mask[3] = False
    x = np.where(mask, rng.normal(size=IDS.shape), np.nan).astype(np.float32)
    expected = np.zeros_like(x)
    for b, at in runs(IDS):
        chosen = x[b, at][mask[b, at]]
        expected[b, at] = chosen.mean() if chosen.size else 0.0
    np.testing.assert_allclose(shared_mean(x, mask, IDS), expected, rtol=1e-5, atol=1e-6)


def test_the_gradient_of_a_total_reaches_its_segment_alone():
    x = jnp.zeros(IDS.shape)
    found = jax.grad(lambda x: segment_totals(x, IDS)[0, 3])(x)
    np.testing.assert_array_equal(found, (IDS == 2) & (np.arange(4) == 0)[:, None])


def test_segments_are_counted_where_the_mask_selects_them():
    mask = np.zeros(IDS.shape, bool)
    assert count_segments(mask, IDS) == 0
    mask[0, 1:3] = mask[0, 5] = mask[1, 4:] = mask[2, 2] = mask[2, 4:6] = True
    assert count_segments(mask, IDS) == 5


def test_a_segment_is_divided_in_order():
    ids = np.array([[1] * 5 + [2] * 11 + [0] * 4, [3] * 20], np.int32)
    mask = ids > 0
    mask[0, 7:9] = mask[1, :4] = False  # a gap, and a prompt
    found = np.asarray(part_of_segment(mask, ids, 8))
    for b, at in [(0, slice(0, 5)), (0, slice(5, 16)), (1, slice(0, 20))]:
        chosen = found[b, at][mask[b, at]]
        count = len(chosen)
        np.testing.assert_array_equal(chosen, [8 * i // count for i in range(count)])
    np.testing.assert_array_equal(np.bincount(found[1][mask[1]]), [2] * 8)
