"""Errors of predicted values of states, compared with mean returns of independent rollouts.

    d_s = v_s - t_s    v_s: predicted value of state s    t_s: mean return of n rollouts from s

All functions here are pure functions of arrays; S is the number of states. The rollouts must be
independent of the prediction, as those of `truth.py` are. Then t_s = V(s) + e_s, where e_s has mean
0 and is independent of v_s. VinePPO's analyzers (`mc_value_prediction_analyzer.py`,
`valnet_prediction_analyzer.py`) also compare with 256 fresh rollouts, but their error includes the
noise of the rollouts. See docs/credit_bench.md.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from vinejax.tools.bench.intervals import Bootstrap, Measure, Statistic

NUM_BINS = 10  # bins of predicted values in a calibration
NUM_PARTS = 5  # parts of a solution, for errors by position


class Truth(NamedTuple):
    """The values of S states, estimated by rollouts."""

    means: np.ndarray  # f64[S] mean return
    variances: np.ndarray  # f64[S] unbiased estimate of the variance of each mean


@dataclasses.dataclass(frozen=True)
class CalibrationBin:
    """States whose predicted values lie in [low, high)."""

    low: float
    high: float
    states: int
    prediction: float | None  # mean predicted value of the states; None without states
    truth: float | None  # mean true value of the states; None without states


@dataclasses.dataclass(frozen=True)
class ErrorPart:
    """Errors at the states that lie between the shares `low` and `high` of a solution's tokens."""

    low: float
    high: float
    states: int
    mae: Measure
    bias: Measure


@dataclasses.dataclass(frozen=True)
class ValueScores:
    """Measures of predicted values; `value_scores` has the equations."""

    states: int
    problems: int
    unpredicted: int  # states without a prediction, which no other field counts
    mae: Measure
    bias: Measure
    squared_error: Measure
    truth_error: float | None  # root mean square standard error of the true values
    rank_correlation: Measure
    calibration: list[CalibrationBin]
    by_position: list[ErrorPart]


def truth_of(returns: ArrayLike) -> Truth:
    """The mean returns t of S states and the variances of these means, from returns R [S, n].

        Var(t) ≈ Σᵢ (Rᵢ - t)² / (n - 1) / n        for returns 0 and 1: t·(1 - t) / (n - 1)

    Raises ValueError for other shapes, and for n = 1, where the variance is undefined.
    """
    array = np.asarray(returns, np.float64)
    if array.ndim != 2 or array.shape[1] < 2:
        raise ValueError(f"expected [S, n] returns with n >= 2; found shape {array.shape}")
    return Truth(array.mean(axis=1), array.var(axis=1, ddof=1) / array.shape[1])


def value_scores(
    predicted: ArrayLike,
    truth: Truth,
    positions: ArrayLike,
    problems: Sequence[str],
) -> ValueScores:
    """Errors of predicted values, with 95% bootstrap intervals over problems.

        mae           = mean |d|            m ≤ E[mae] ≤ m + `truth_error` with m = mean |v - V|
        bias          = mean d
        squared_error = mean (d² - Var(t))  unbiased for the mean of (v - V)²; can be negative
        truth_error   = √mean Var(t)
        rank_correlation: Spearman's rank correlation of v and t

    The bounds of the MAE hold because e has mean 0 and is independent of v: E|v - V - e| is at
    least |v - V| by Jensen's inequality, and at most |v - V| + E|e|. Noise of the truth lowers the
    rank correlation. The rank correlation is None if all predictions, or all true values, are
    equal. Its interval leaves out draws in which this is so.

    Args:
      predicted: [S] predicted values; nan for a state without a prediction.
      truth: the truth for S states.
      positions: [S] share of the solution's tokens before the state, from 0 to below 1.
      problems: [S] ids of the states' problems.

    Raises ValueError if lengths differ or a position is outside [0, 1).
    """
    v, places = np.asarray(predicted, np.float64), np.asarray(positions, np.float64)
    lengths = [*map(len, (v, truth.means, truth.variances, places, problems))]
    if len(set(lengths)) > 1:
        raise ValueError(f"predictions, truth (2), positions, problems of lengths {lengths}")
    if places.size and not (places.min() >= 0 and places.max() < 1):
        raise ValueError(f"positions from {places.min()} to {places.max()}: must be in [0, 1)")
    has_value = np.isfinite(v)
    names = [problem for problem, has in zip(problems, has_value, strict=True) if has]
    v, places, means, variances = (x[has_value] for x in (v, places, truth.means, truth.variances))
    differences, bootstrap = v - means, Bootstrap(names)
    return ValueScores(
        states=len(v),
        problems=bootstrap.num_problems,
        unpredicted=int(np.sum(~has_value)),
        mae=bootstrap.mean(np.abs(differences)),
        bias=bootstrap.mean(differences),
        squared_error=bootstrap.mean(differences**2 - variances),
        truth_error=float(np.sqrt(variances.mean())) if len(v) else None,
        rank_correlation=bootstrap.measure(rank_correlation(v, means)),
        calibration=calibration(v, means),
        by_position=_by_position(differences, places, bootstrap),
    )


def calibration(predicted: np.ndarray, truth: np.ndarray) -> list[CalibrationBin]:
    """Mean predicted and mean true values of S states, in bins of the predicted value.

    The bins divide [0, 1] evenly. Predictions outside [0, 1] count in the first or the last bin. A
    prediction is calibrated if E[V | v] = v. The mean of a few rollouts is unbiased, E[v | V] = V,
    but not calibrated: high means are too high on average, and low means are too low.
    """
    # Rounded, so that 0.7 in float32 falls into the bin that begins at 0.7.
    scaled = np.round(predicted * NUM_BINS, 5)
    numbers = np.clip(np.floor(scaled), 0, NUM_BINS - 1)
    edges = np.linspace(0.0, 1.0, NUM_BINS + 1).tolist()
    table = []
    for b in range(NUM_BINS):
        members = numbers == b
        count = int(members.sum())
        mean_prediction = float(predicted[members].mean()) if count else None
        mean_truth = float(truth[members].mean()) if count else None
        table.append(CalibrationBin(edges[b], edges[b + 1], count, mean_prediction, mean_truth))
    return table


def rank_correlation(a: np.ndarray, b: np.ndarray) -> Statistic:
    """Returns a function of weights w, f64[S]: the rank correlation of `a` and `b` [S] under w.

        ρ = Σ w (x - x̄)(y - ȳ) / √(Σ w (x - x̄)² · Σ w (y - ȳ)²)    x, y: ranks of a and b

    State s counts w_s times, as in a bootstrap draw, also in the ranks and in their means x̄ and ȳ.
    With w = 1 this is Spearman's ρ. Equal values have the mean of their ranks. The function returns
    None if, among the states with w > 0, all x or all y are equal, or if there is no such state.
    """
    numbers = [np.unique(x, return_inverse=True)[1] for x in (a, b)]

    def statistic(weights: np.ndarray) -> float | None:
        total = weights.sum()
        if not total:
            return None
        ranks = [mean_ranks(x, weights) for x in numbers]
        x, y = (rank - (weights @ rank) / total for rank in ranks)
        scale = float(np.sqrt((weights @ x**2) * (weights @ y**2)))
        return float(weights @ (x * y)) / scale if scale else None

    return statistic


def mean_ranks(numbers: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """f64[S]: ranks, from 1, of S values, where value i occurs `weights[i]` times.

    `numbers` i[S] index the sorted distinct values. Equal values have the mean of their ranks.
    """
    counts = np.bincount(numbers, weights)
    return (np.cumsum(counts) - (counts - 1) / 2)[numbers]


def _by_position(
    differences: np.ndarray, places: np.ndarray, bootstrap: Bootstrap
) -> list[ErrorPart]:
    numbers = np.floor(places * NUM_PARTS)
    parts = []
    for p in range(NUM_PARTS):
        members = numbers == p
        parts.append(
            ErrorPart(
                low=p / NUM_PARTS,
                high=(p + 1) / NUM_PARTS,
                states=int(members.sum()),
                mae=bootstrap.mean(np.abs(differences), members),
                bias=bootstrap.mean(differences, members),
            )
        )
    return parts
