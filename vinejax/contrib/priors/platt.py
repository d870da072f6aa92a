"""A learned value from outside: the chance of success that a function of the user's gives to texts.

    v(s) = sigmoid(a·x + b)    x = log(p / (1 - p)), p the function's number for the text up to s

a and b by logistic regression on the labels of earlier iterations, (1, 0) before there are any:
Platt's scaling, which takes out a constant error and a confidence that is too large. The function
has seen no label of the run, so that nothing is cross-fitted. Labels are the probe's
(`credit/probe.py`), within 0 and 1.

The weight μ of v in a baseline b is the coefficient of v in the least squares, over the states of
earlier iterations, of G - b on (m - b, v - m), m being the mean label: what v says beyond a
constant, since the mean alone lowers the variance of a noisy b, too. A function that says nothing
gets a of about 0 and so v of about m; `DOUBT` keeps the weight of its noise near 0.

Source: Platt, "Probabilistic outputs for support vector machines", 1999. Arrays are NumPy's, in
float64, the same on every host.
"""

from typing import NamedTuple

import numpy as np

from vinejax.credit.probe import KEPT, ProbeStates, labels

BINS = 64  # of x, in which labels are added up
WIDEST = 7.0  # |x| at most: p from 0.0009 to 0.9991
STEPS = 500  # of the fit, on 64 numbers
DOUBT = 10.0  # added to Σ (v - m)²: about that of 200 states whose v differ by 0.22


class Scaling(NamedTuple):
    """What is kept between iterations, with weights that decay by `KEPT` per iteration."""

    bins: np.ndarray  # f64[3, BINS] Σ n, Σ n·y and Σ n·x of the states in a bin of x
    products: np.ndarray  # f64[2, 3] Σ of (m - b, v - m) times (m - b, v - m, G - b)


def fresh_scaling() -> Scaling:
    """The scaling before the first iteration."""
    return Scaling(np.zeros((3, BINS)), np.zeros((2, 3)))


def logits(numbers: np.ndarray) -> np.ndarray:
    """f64[S, 1] x of f64[S] p, within `WIDEST`: the feature of `ProbeStates`."""
    least = 1 / (1 + np.exp(WIDEST))
    p = np.clip(numbers, least, 1 - least)
    return np.log(p / (1 - p))[:, None]


def predictions(kept: Scaling, states: ProbeStates) -> np.ndarray:
    """f64[1, S] v of all states."""
    a, b = _fit(kept.bins)
    return _sigmoid(a * states.features.T + b)


def chosen(kept: Scaling, predicted: np.ndarray) -> np.ndarray:
    """f64[S] the one row of `predictions`."""
    return predicted[0]


def mean_label(kept: Scaling) -> float:
    """The mean of the labels of earlier iterations; ½ before the second."""
    count, total, _ = kept.bins.sum(axis=1)
    return float(total / count) if count > 0 else 0.5


def weight_of(kept: Scaling) -> float:
    """μ by earlier iterations; 0 before the third, as v is not scaled in the first."""
    square, cross = kept.products[:, :2], kept.products[:, 2]
    found = np.linalg.solve(square + np.diag([1e-6, DOUBT]), cross)
    return float(np.clip(found[1], 0.0, 1.0))


def updated(
    kept: Scaling,
    states: ProbeStates,
    predicted: np.ndarray,
    baseline: np.ndarray,
    is_known: np.ndarray,
) -> Scaling:
    """The scaling after an iteration; its baselines without v were f64[S] `baseline`, if known."""
    x = states.features[:, 0]
    label, weight = labels(states)
    place = ((x + WIDEST) / (2 * WIDEST) * (BINS - 1)).round().astype(int)
    of_states = weight, weight * np.clip(label, 0.0, 1.0), weight * x
    bins = np.stack([np.bincount(place, some, BINS) for some in of_states])
    products = np.zeros((2, 3))
    if kept.bins.any():
        mean = mean_label(kept)
        left = np.stack([mean - baseline, predicted[0] - mean]) * is_known
        products = left @ np.stack([*left, states.solution_return - baseline], axis=1)
    return Scaling(bins + KEPT * kept.bins, products + KEPT * kept.products)


def _fit(bins: np.ndarray) -> np.ndarray:
    """(a, b) of the least Σ n·(cross entropy of y) + ½·((a - 1)² + b²).

    Each step minimises a bound by a parabola, so that none goes too far: Böhning and Lindsay, 1988.
    """
    count, total, sum_x = bins
    x = np.stack([sum_x / np.maximum(count, 1e-12), np.ones(BINS)])
    identity = np.array([1.0, 0.0])
    bound = np.linalg.inv(x * count / 4 @ x.T + np.eye(2))
    found = identity
    for _ in range(STEPS):
        slope = x @ (total - count * _sigmoid(found @ x)) - (found - identity)
        found = found + bound @ slope
    return found


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
