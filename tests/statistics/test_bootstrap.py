"""Draws with replacement, and percentiles by hand."""

import numpy as np
import pytest

from vinejax.statistics.bootstrap import percentile_interval, resampled


def test_draws_are_with_replacement_and_as_many_as_there_are():
    drawn = resampled(np.random.default_rng(0), count=4, draws=5000)
    assert drawn.shape == (5000, 4) and set(drawn.ravel()) == {0, 1, 2, 3}
    # All four different: 4! / 4^4 of the draws.
    different = np.mean([len(set(row)) == 4 for row in drawn.tolist()])
    assert abs(different - 24 / 256) < 4 * (24 / 256 / 5000) ** 0.5
    one_by_one = np.random.default_rng(0)
    np.testing.assert_array_equal(drawn[:9], [one_by_one.integers(0, 4, 4) for _ in range(9)])


def test_percentiles_lie_between_neighbours():
    found = percentile_interval(list(range(41)))  # 2.5% and 97.5% of 40 steps
    assert found == pytest.approx((1.0, 39.0))
    assert percentile_interval([0.0, 10.0], level=0.5) == (2.5, 7.5)


def test_an_end_beside_an_infinite_value_is_not_finite():
    low, high = percentile_interval([1.0] * 39 + [np.inf] * 2)
    assert low == 1.0 and not np.isfinite(high)
    assert not np.isfinite(percentile_interval([np.inf] * 5)).any()
