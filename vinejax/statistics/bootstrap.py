"""Bootstrap intervals: draws with replacement, and percentiles over the draws."""

from collections.abc import Sequence

import numpy as np

LEVEL = 0.95  # default level of an interval


def resampled(rng: np.random.Generator, count: int, draws: int) -> np.ndarray:
    """i64[draws, count]: each row draws `count` of the numbers 0 .. count - 1, with replacement."""
    return rng.integers(0, count, (draws, count))


def percentile_interval(
    values: Sequence[float] | np.ndarray, level: float = LEVEL
) -> tuple[float, float]:
    """The ends of the percentile interval of a statistic, whose value in each draw is given.

    The ends are the quantiles (1 - level) / 2 and (1 + level) / 2, linear between neighbours.
    Values may be infinite. An end between two values of which one is infinite is not finite.
    """
    with np.errstate(invalid="ignore"):  # the difference of two infinite neighbours
        low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
