"""Statistics of few runs per task: interquartile mean, probability of improvement, intervals.

The definitions are those of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the
Statistical Precipice" (arXiv 2108.13264), and of their library, rliable. Scores are a sequence with
one array per task, so tasks may have different numbers of runs; rliable expects one matrix.
tests/tools/report/test_interquartile.py compares our results with those of rliable.

Intervals of means are percentiles of a stratified bootstrap. A draw takes n of the n runs of each
task, with replacement, independently of other tasks. The tasks themselves are not resampled, so an
interval is about other seeds on the same tasks. The result is deterministic for a given `seed`.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import root_scalar

from vinejax.statistics.bootstrap import percentile_interval, resampled

DRAWS = 10_000  # number of bootstrap draws
Z = 1.959964  # the 97.5% quantile of the standard normal distribution
Scores = Sequence[Sequence[float] | np.ndarray]  # per task, the scores of its runs [n]
TaskDraws = list[np.ndarray]  # per task, [draws, n]


class IntervalEstimate(NamedTuple):
    """A statistic of the scores, and the ends of its interval."""

    value: float
    low: float
    high: float


def interquartile_mean(scores: Scores) -> float:
    """The mean of the middle half of the scores of all tasks and runs together.

    The floor(N / 4) smallest and the floor(N / 4) largest of N scores are left out. This is
    rliable's `aggregate_iqm`, or SciPy's `trim_mean(scores, 0.25)`. Raises ValueError without
    scores.
    """
    return float(_middle_mean(_as_draws(scores))[0])


def iqm_interval(scores: Scores, seed: int = 0, draws: int = DRAWS) -> IntervalEstimate:
    """The interquartile mean with its bootstrap interval. Raises ValueError without scores."""
    return _interval(_middle_mean, [scores], seed, draws)


def iqm_difference(x: Scores, y: Scores) -> IntervalEstimate:
    """The interquartile mean of x minus that of y, with the interval of this difference.

    The runs of x and y are drawn independently. Raises ValueError if x or y has no scores.
    """
    return _interval(lambda a, b: _middle_mean(a) - _middle_mean(b), [x, y])


def probability_of_improvement(x: Scores, y: Scores) -> float:
    """The chance that a run of x is better than a run of y, as a mean over tasks.

        P(X > Y) = (1 / M) Σₘ (1 / (Nₘ Kₘ)) Σᵢ Σⱼ S(xₘᵢ, yₘⱼ)
        S(x, y) = 1 if x > y, 1/2 if x = y, else 0

    Here task m of M tasks has Nₘ runs of x and Kₘ runs of y. This is `probability_of_improvement`
    of rliable (Agarwal et al., section 4.3). For one task it is Mann-Whitney's U divided by Nₘ Kₘ.
    Raises ValueError if x and y have different numbers of tasks, or if a task has no scores.
    """
    runs_x, runs_y = _as_draws(x), _as_draws(y)
    if len(runs_x) != len(runs_y):
        raise ValueError(f"x has {len(x)} tasks, y {len(y)}")
    by_task = []
    for (scores_x,), (scores_y,) in zip(runs_x, runs_y, strict=True):
        by_task.append((0.5 + 0.5 * np.sign(scores_x[:, None] - scores_y)).mean())
    return float(np.mean(by_task))


def improvement_interval(x: Scores, y: Scores) -> IntervalEstimate:
    """The probability of improvement, with an interval whose width is never 0.

    For one task, with N runs of x and K runs of y, it is Newcombe's interval. It contains every
    possible probability θ that is at most 1.96 standard errors away from the estimate. The squared
    standard error is computed from θ, not from the estimate:

        θ (1 - θ) / (N K) · (1 + ((N + K) / 2 - 1) · ((1 - θ) / (2 - θ) + θ / (1 + θ)))

    For M tasks, the distance of an end from the mean over tasks is the root of the sum of the
    tasks' squared distances, divided by M (Zou and Donner 2008). Source: Newcombe 2006, "Confidence
    intervals for an effect size measure based on the Mann-Whitney statistic", part 2, method 5.

    The interval contains the true θ in 90% to 97% of cases if both groups have normal scores of
    equal spread (simulated; 3, 5 and 10 runs; θ from 0.5 to 0.99). It contains θ less often if a
    share 1 - θ of the runs of x collapses below all runs of y while the others end above them all:
    in 75% of cases at worst with three runs, 78% with five and 77% with ten, and in 93%, 91% and
    90% on average over θ. If one group has ten times the spread of the other, the worst cases are
    80%, 88% and 86%.

    rliable uses a bootstrap, whose interval is a single point if every run of x is better than
    every run of y. Raises ValueError in the cases of `probability_of_improvement`.
    """
    value = probability_of_improvement(x, y)
    below, above = [], []
    for scores_x, scores_y in zip(x, y, strict=True):
        theta = probability_of_improvement([scores_x], [scores_y])
        low, high = _newcombe(theta, len(scores_x), len(scores_y))
        below.append(theta - low)
        above.append(high - theta)
    return IntervalEstimate(
        value, value - math.hypot(*below) / len(x), value + math.hypot(*above) / len(x)
    )


def _newcombe(theta: float, n: int, k: int) -> tuple[float, float]:
    """Newcombe's interval around the estimate `theta`, for one task with n and k runs."""

    def excess(candidate: float) -> float:
        spread = (1 - candidate) / (2 - candidate) + candidate / (1 + candidate)
        variance = candidate * (1 - candidate) / (n * k) * (1 + ((n + k) / 2 - 1) * spread)
        return (theta - candidate) ** 2 - Z**2 * variance

    # `excess` is negative just beside theta, and positive at 0 and 1 unless theta is there.
    low = 0.0 if theta == 0 else root_scalar(excess, bracket=(0.0, theta - 1e-9)).root
    high = 1.0 if theta == 1 else root_scalar(excess, bracket=(theta + 1e-9, 1.0)).root
    return low, high


def _as_draws(scores: Scores) -> TaskDraws:
    """The scores as one draw, [1, n] for each task. Raises ValueError for a task without scores."""
    arrays = [np.asarray(runs, np.float64) for runs in scores]
    if not arrays or any(array.ndim != 1 or array.size == 0 for array in arrays):
        shapes = [array.shape for array in arrays]
        raise ValueError(f"expected the scores of runs, [n], of at least one task; found {shapes}")
    return [array[None] for array in arrays]


def _interval(
    statistic: Callable[..., np.ndarray],
    groups: Sequence[Scores],
    seed: int = 0,
    draws: int = DRAWS,
) -> IntervalEstimate:
    """A statistic of groups of scores with its interval; groups are resampled independently."""
    rng = np.random.default_rng(seed)
    scores_of = [_as_draws(scores) for scores in groups]
    drawn = [[runs[0][resampled(rng, runs.size, draws)] for runs in tasks] for tasks in scores_of]
    low, high = percentile_interval(statistic(*drawn))
    return IntervalEstimate(float(statistic(*scores_of)[0]), low, high)


def _middle_mean(draws: TaskDraws) -> np.ndarray:
    """f64[draws]: the interquartile mean of every draw."""
    pooled = np.sort(np.concatenate(draws, axis=1), axis=1)
    count = pooled.shape[1]
    cut = count // 4
    return pooled[:, cut : count - cut].mean(axis=1)
