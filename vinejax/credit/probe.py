"""The probe: a learned value of states, by ridge regression on what the policy computes anyway.

    v(s) = φ(s)·w    w = argmin Σ_s n_s·(y_s - φ(s)·w)² + α·|w_h|²

φ(s) has 1, the mean reward m of the problem's other solutions, the share p of the token budget that
is used, the policy's hidden state h at the last token of s, and h·m; w_h are the weights of h and
h·m. y_s is the mean of the n_s returns known at s: the solution's own and those of continuations.

Cross-fitted: a problem's v comes from the labels of other problems, and from earlier iterations.
The strength α, and the weight of v in a baseline b,

    μ = Σ_s (G_s - b_s)·(v_s - b_s) / Σ_s (v_s - b_s)²    within 0 and 1

G_s the solution's return from s on, come from earlier iterations alone: G_s is a draw with mean
V(s), independent of b_s and v_s, so that μ is the least-squares weight without bias. So v says
nothing of what its solution does after s, and the policy gradient stays unbiased however bad it is.

Source: ours; a control variate by cross-fitting, as in double machine learning,
https://arxiv.org/abs/1608.00060. Arrays are NumPy's, in float64, the same on every host.
"""

from typing import NamedTuple

import numpy as np

FOLDS = 8  # of an iteration's problems, at most
STRENGTHS = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5)  # α that are tried
KEPT = 0.8  # share of the labels' weight that an iteration leaves of those before it
NUM_PLAIN = 3  # features without a penalty: 1, m and p


class Moments(NamedTuple):
    """Weighted sums over states, of which the fit is made."""

    square: np.ndarray  # f64[P, P] Σ n·φφᵀ
    cross: np.ndarray  # f64[P] Σ n·y·φ

    def plus(self, other: "Moments", share: float = 1.0) -> "Moments":
        """These sums and `share` times the others."""
        return Moments(self.square + share * other.square, self.cross + share * other.cross)


class Probe(NamedTuple):
    """What is kept between iterations, with weights that decay by `KEPT` per iteration."""

    moments: Moments
    errors: np.ndarray  # f64[strengths] Σ (v - G)² of states whose problem was left out
    gain: np.ndarray  # f64[2] numerator and denominator of μ


class ProbeStates(NamedTuple):
    """The states of an iteration's solutions, one after the other."""

    features: np.ndarray  # f64[S, P]
    problem: np.ndarray  # i64[S] number of the state's problem
    solution_return: np.ndarray  # f64[S] G: the solution's return from the state on
    value: np.ndarray  # f64[S] mean return of others from the state on; read where `count` > 0
    count: np.ndarray  # i64[S] of these


class Prediction(NamedTuple):
    """The states of an iteration, and what the probe says of them before it learns from them."""

    states: ProbeStates
    by_strength: np.ndarray  # f64[strengths, S] v by every α


def features_of(hidden: np.ndarray, siblings: np.ndarray, used: np.ndarray) -> np.ndarray:
    """f64[S, 3 + 2R] φ of states, from f32[S, R] hidden states, f[S] m and f[S] p."""
    h = hidden.astype(np.float64)
    plain = np.stack([np.ones(len(h)), siblings, used], axis=1)
    return np.concatenate([plain, h, h * siblings[:, None]], axis=1)


def fresh_probe(hidden: int) -> Probe:
    """The probe before the first iteration, for hidden states of R = `hidden` numbers."""
    size = NUM_PLAIN + 2 * hidden
    moments = Moments(np.zeros((size, size)), np.zeros(size))
    return Probe(moments, np.zeros(len(STRENGTHS)), np.zeros(2))


def predictions(probe: Probe, states: ProbeStates) -> np.ndarray:
    """f64[strengths, S] v of all states by every α; 0 while there are no labels of others."""
    _, number = np.unique(states.problem, return_inverse=True)
    fold = number % FOLDS
    label, weight = labels(states)
    parts = [
        _moments(states.features[fold == i], label[fold == i], weight[fold == i])
        for i in range(fold.max(initial=-1) + 1)
    ]
    found = np.zeros((len(STRENGTHS), len(label)))
    for i in range(len(parts)):
        others = probe.moments
        for part in parts[:i] + parts[i + 1 :]:
            others = others.plus(part)
        found[:, fold == i] = _solve(others) @ states.features[fold == i].T
    return found


def chosen(probe: Probe, predicted: np.ndarray) -> np.ndarray:
    """f64[S] v by the strength that was best in earlier iterations; the largest in the first."""
    best = np.argmin(probe.errors[::-1])  # of equals the larger
    return predicted[::-1][best]


def weight_of(probe: Probe) -> float:
    """μ by earlier iterations; 0 before the second."""
    above, below = probe.gain
    return float(np.clip(above / below, 0.0, 1.0)) if below > 0 else 0.0


def mean_label(probe: Probe) -> float:
    """The mean of the labels of earlier iterations; ½ before the second."""
    count = probe.moments.square[0, 0]
    return float(probe.moments.cross[0] / count) if count > 0 else 0.5


def read_out(probe: Probe) -> tuple[np.ndarray, float, float]:
    """(f64[R] w, b, c) of v = h·w + b + c·p, by all labels; m is taken to be their mean."""
    weights, m = chosen(probe, _solve(probe.moments)), mean_label(probe)
    of_h, of_product = np.split(weights[NUM_PLAIN:], 2)
    return of_h + m * of_product, float(weights[0] + m * weights[1]), float(weights[2])


def updated(
    probe: Probe,
    states: ProbeStates,
    predicted: np.ndarray,
    baseline: np.ndarray,
    is_known: np.ndarray,
) -> Probe:
    """The probe after an iteration; its baselines without v were f[S] `baseline`, if known."""
    label, weight = labels(states)
    moments = _moments(states.features, label, weight).plus(probe.moments, KEPT)
    v, own = chosen(probe, predicted), states.solution_return
    apart = np.where(is_known, v - baseline, 0.0)
    gain = np.array([np.sum((own - baseline) * apart), np.sum(apart**2)])
    errors = np.sum((predicted - own) ** 2, axis=1)
    return Probe(moments, errors + KEPT * probe.errors, gain + KEPT * probe.gain)


def metrics(states: ProbeStates, v: np.ndarray, weight: float) -> dict[str, float]:
    """The error of v without the noise of labels, its weight, and its calibration by tenths.

    E[(v - V̂)·(v - G)] = E[(v - V)²], as V̂ and G are independent draws at s. Calibration is the mean
    of G - v over the states whose v lies in a tenth of its range from 0 to 1.
    """
    found = {"value/weight": weight}
    is_sampled = states.count > 0
    if is_sampled.any():
        error = (v - states.value) * (v - states.solution_return)
        found["value/error"] = float(error[is_sampled].mean())
    tenth = np.clip(v * 10, 0, 9).astype(int)
    for n in np.unique(tenth):
        found[f"value/calibration/{n + 1}"] = float((states.solution_return - v)[tenth == n].mean())
    return found


def labels(states: ProbeStates) -> tuple[np.ndarray, np.ndarray]:
    """f64[S] mean of all returns known at each state, and their number."""
    weight = states.count + 1.0
    others = np.where(states.count > 0, states.value, 0.0)
    return (states.solution_return + states.count * others) / weight, weight


def _moments(features: np.ndarray, label: np.ndarray, weight: np.ndarray) -> Moments:
    weighted = features * weight[:, None]
    return Moments(weighted.T @ features, weighted.T @ label)


def _solve(moments: Moments) -> np.ndarray:
    """f64[strengths, P] the weights of the fit by every α."""
    size = len(moments.cross)
    penalty = np.ones(size)
    penalty[:NUM_PLAIN] = 1e-6  # keeps the plain features solvable where they are constant
    return np.stack(
        [
            np.linalg.solve(moments.square + np.diag(strength * penalty), moments.cross)
            for strength in STRENGTHS
        ]
    )
