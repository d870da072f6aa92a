"""Bootstrap intervals over problems, for measures of the states of many solutions.

In shapes, S is the number of states and P the number of problems.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from vinejax.statistics.bootstrap import percentile_interval, resampled

# Maps weights f64[S], how often each state counts, to a measure of the states; None if undefined
Statistic = Callable[[np.ndarray], float | None]


@dataclasses.dataclass(frozen=True)
class Measure:
    """A measure with the ends of its bootstrap interval; None for a number that is not defined."""

    value: float | None
    low: float | None
    high: float | None


class Bootstrap:
    """Percentile bootstrap over the problems of S states.

    Each draw takes P problems with replacement, and all states of each drawn problem. States are
    not drawn one by one, because the states of a problem are not independent. The draws depend only
    on `seed` and P, so two estimators that are measured at the same states have the same draws.

    `statistics.accuracy.bootstrap_interval` is for means of one score per problem. Here problems
    have different numbers of states, and a measure need not be a mean.
    """

    def __init__(self, problems: Sequence[str], seed: int = 0, samples: int = 1000):
        """`problems` [S] are the ids of the states' problems."""
        names, self._numbers = np.unique(np.asarray(problems, str), return_inverse=True)
        self.num_problems = len(names)
        rows: np.ndarray | list = []
        if len(names) > 1:
            rows = resampled(np.random.default_rng(seed), len(names), samples)
        counts = [np.bincount(row, minlength=len(names)) for row in rows]
        # [draws, problems] how often each problem is in each draw
        self._counts = np.array(counts, np.float64).reshape(len(counts), len(names))

    def measure(self, statistic: Statistic) -> Measure:
        """The statistic of all states, with its interval.

        Draws for which the statistic is not defined are left out. With fewer than two problems the
        interval is None, because one problem says nothing about other problems.
        """
        value = statistic(np.ones(len(self._numbers)))
        draws = [statistic(counts[self._numbers]) for counts in self._counts]
        return self._with_interval(value, draws)

    def mean(self, x: np.ndarray, is_counted: np.ndarray | None = None) -> Measure:
        """The mean of `x` f64[S] over the states where `is_counted` bool[S] is true (None: all).

        Every state has the same weight, so problems with many states count more.
        """
        counted = np.ones(len(x), bool) if is_counted is None else is_counted
        return self.ratio(np.where(counted, x, 0.0), counted)

    def ratio(self, numerators: np.ndarray, denominators: np.ndarray) -> Measure:
        """Σ `numerators` / Σ `denominators`, both f64[S]; None if `denominators` sum to 0."""
        parts = (numerators, denominators)
        above, below = (np.bincount(self._numbers, x, self.num_problems) for x in parts)
        value = float(above.sum() / below.sum()) if below.sum() else None
        sums = zip((self._counts @ above).tolist(), (self._counts @ below).tolist(), strict=True)
        return self._with_interval(value, [a / b if b else None for a, b in sums])

    def _with_interval(self, value: float | None, draws: list[float | None]) -> Measure:
        if value is None:
            return Measure(None, None, None)
        defined = [x for x in draws if x is not None]
        if not defined:
            return Measure(value, None, None)
        low, high = percentile_interval(defined)
        return Measure(value, low, high)
