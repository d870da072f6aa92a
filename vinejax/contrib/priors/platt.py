"""Platt's scaling of a user's function, which gives chances of success to texts.

    v(s) = sigmoid(a·x + b)    x = log(p / (1 - p)), p: the function's number for the text up to s

Logistic regression on the targets of earlier iterations gives a and b. Before there are targets, a
is 1 and b is 0. The scaling takes out a constant error and a confidence that is too large. The
user's function has seen no target of the run, so nothing needs cross-fitting. Targets are the
probe's (`credit/probe.py`), clipped to 0 and 1.

The weight μ of v in a baseline comes from least squares over the states of earlier iterations. From
here on b is the baseline. μ is the coefficient of v - m in the regression of G - b on
(m - b, v - m), where G is the solution's return and m the mean target. The term m - b absorbs what
a constant explains, because a constant can also lower the variance of a noisy b. For a function
without information, a is about 0 and v about m. `DOUBT` then keeps μ near 0.

Source: Platt, "Probabilistic outputs for support vector machines", 1999. Arrays are NumPy's, in
float64, and equal on every host.
"""

from typing import NamedTuple

import numpy as np

from vinejax.credit.probe import KEPT, ProbeStates, targets

BINS = 64  # number of bins of x, in which targets are added up
WIDEST = 7.0  # bound of |x|, which keeps p between 0.0009 and 0.9991
STEPS = 500  # steps of the fit of a and b
DOUBT = 10.0  # ridge added to Σ (v - m)²; as large as this sum over 200 states with |v - m| = 0.22


class Scaling(NamedTuple):
    """Sums over states, kept between iterations; each iteration multiplies old sums by `KEPT`."""

    bins: np.ndarray  # f64[3, BINS] Σ n, Σ n·y and Σ n·x over the states in a bin of x
    products: np.ndarray  # f64[2, 3] Σ of (m - b, v - m) times (m - b, v - m, G - b)


def fresh_scaling() -> Scaling:
    """The empty sums before the first iteration."""
    return Scaling(np.zeros((3, BINS)), np.zeros((2, 3)))


def logits(numbers: np.ndarray) -> np.ndarray:
    """The logit x of each number p of the function, f64[S, 1]: the `features` of `ProbeStates`.

    |x| is at most `WIDEST`.
    """
    least = 1 / (1 + np.exp(WIDEST))
    p = np.clip(numbers, least, 1 - least)
    return np.log(p / (1 - p))[:, None]


def predictions(scaling: Scaling, states: ProbeStates) -> np.ndarray:
    """The values v of all states as a single row, f64[1, S]."""
    a, b = _fit(scaling.bins)
    return _sigmoid(a * states.features.T + b)


def chosen(scaling: Scaling, predicted: np.ndarray) -> np.ndarray:
    """The values v, f64[S]: the only row of `predicted`, which `predictions` has returned."""
    return predicted[0]


def mean_target(scaling: Scaling) -> float:
    """The mean of the targets of earlier iterations; ½ in the first iteration."""
    count, total, _ = scaling.bins.sum(axis=1)
    return float(total / count) if count > 0 else 0.5


def weight_of(scaling: Scaling) -> float:
    """The weight μ of v in a baseline, computed from the sums of earlier iterations.

    It is 0 in the first two iterations, because the first has no fitted v to add to these sums.
    """
    square, cross = scaling.products[:, :2], scaling.products[:, 2]
    coefficients = np.linalg.solve(square + np.diag([1e-6, DOUBT]), cross)
    return float(np.clip(coefficients[1], 0.0, 1.0))


def updated(
    scaling: Scaling,
    states: ProbeStates,
    predicted: np.ndarray,
    baseline: np.ndarray,
    is_known: np.ndarray,
) -> Scaling:
    """The scaling after an iteration with these `states`, whose values were `predicted`.

    `baseline` has the baselines without v, f64[S]; `is_known` says which states had a baseline.
    """
    x = states.features[:, 0]
    target, weight = targets(states)
    place = ((x + WIDEST) / (2 * WIDEST) * (BINS - 1)).round().astype(int)
    of_states = weight, weight * np.clip(target, 0.0, 1.0), weight * x
    bins = np.stack([np.bincount(place, some, BINS) for some in of_states])
    products = np.zeros((2, 3))
    if scaling.bins.any():
        mean = mean_target(scaling)
        left = np.stack([mean - baseline, predicted[0] - mean]) * is_known
        products = left @ np.stack([*left, states.solution_return - baseline], axis=1)
    return Scaling(bins + KEPT * scaling.bins, products + KEPT * scaling.products)


def _fit(bins: np.ndarray) -> np.ndarray:
    """The array (a, b) that minimises Σ n·(cross entropy) + ½·((a - 1)² + b²).

    The sum is over bins of states with similar logit x, and the cross entropy is that of a bin's
    mean target and sigmoid(a·x + b) at its mean x. `bins` has, for each bin, the total weight n of
    its states, and the weighted sums of their targets and of their x. Each step of the fit
    minimises a quadratic upper bound, so that no step increases the objective (Böhning and Lindsay,
    1988).
    """
    count, total, sum_x = bins
    x = np.stack([sum_x / np.maximum(count, 1e-12), np.ones(BINS)])
    identity = np.array([1.0, 0.0])
    bound = np.linalg.inv(x * count / 4 @ x.T + np.eye(2))
    coefficients = identity
    for _ in range(STEPS):
        slope = x @ (total - count * _sigmoid(coefficients @ x)) - (coefficients - identity)
        coefficients = coefficients + bound @ slope
    return coefficients


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
