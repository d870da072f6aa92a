"""The probe: a learned value of states, by ridge regression on the policy's hidden states.

    v(s) = φ(s)·w    w = argmin Σ_s n_s·(y_s - φ(s)·w)² + α·|w_h|²

The features φ(s) are 1, the mean reward m of the problem's other solutions, the used share p of the
token budget, the policy's hidden state h at the last token of s, and h·m. w_h are the weights of h
and h·m. The target y_s is the mean of the n_s returns known at s: the solution's own and those of
continuations. The scoring pass computes the hidden states anyway.

The fit is cross-fitted: the v of a problem comes from targets of other problems and of earlier
iterations. The strength α, and the weight μ of v in a baseline b, come from earlier iterations
alone:

    μ = Σ_s (G_s - b_s)·(v_s - b_s) / Σ_s (v_s - b_s)²    within 0 and 1

G_s is the solution's return from s on. It is a draw with mean V(s), independent of b_s and v_s, so
that μ is the least-squares weight without bias. Since v knows nothing of what its solution does
after s, the policy gradient stays unbiased however wrong v is.

Source: ours; a control variate by cross-fitting, as in double machine learning,
https://arxiv.org/abs/1608.00060. All arrays are NumPy arrays in float64, equal on every host.
"""

from typing import NamedTuple

import numpy as np

from vinejax.rl.values import explained_variance

FOLDS = 8  # maximum of parts into which an iteration's problems are divided
STRENGTHS = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5)  # values of α to choose from
KEPT = 0.8  # factor by which earlier sums decay in each iteration
NUM_PLAIN = 3  # number of features without a penalty: 1, m and p


class Moments(NamedTuple):
    """The weighted sums over states that determine the fit."""

    square: np.ndarray  # f64[P, P] Σ n·φφᵀ
    cross: np.ndarray  # f64[P] Σ n·y·φ

    def plus(self, other: "Moments", share: float = 1.0) -> "Moments":
        """The sums of `self` plus `share` times the sums of `other`."""
        return Moments(self.square + share * other.square, self.cross + share * other.cross)


class Probe(NamedTuple):
    """The sums that the probe keeps between iterations.

    In every iteration, the earlier sums are multiplied by the factor `KEPT`.
    """

    moments: Moments
    errors: np.ndarray  # f64[strengths] Σ (v - G)² of states whose problem was held out
    gain: np.ndarray  # f64[2] numerator and denominator of μ


class ProbeStates(NamedTuple):
    """The states of all solutions of an iteration."""

    features: np.ndarray  # f64[S, P] φ
    problem: np.ndarray  # i64[S] number of the state's problem
    solution_return: np.ndarray  # f64[S] G, the solution's return from the state on
    value: np.ndarray  # f64[S] mean return of other samples at the state; read if `count` > 0
    count: np.ndarray  # i64[S] number of these other samples


class Prediction(NamedTuple):
    """The states of an iteration, with the values v that the probe predicts for them.

    The probe predicts these values before it learns from the iteration.
    """

    states: ProbeStates
    by_strength: np.ndarray  # f64[strengths, S] v for every α


def features_of(hidden: np.ndarray, siblings: np.ndarray, used: np.ndarray) -> np.ndarray:
    """f64[S, 3 + 2R] φ from f32[S, R] hidden states, f[S] m (siblings) and f[S] p (used)."""
    h = hidden.astype(np.float64)
    plain = np.stack([np.ones(len(h)), siblings, used], axis=1)
    return np.concatenate([plain, h, h * siblings[:, None]], axis=1)


def fresh_probe(hidden: int) -> Probe:
    """The probe before the first iteration, for hidden states of size `hidden`."""
    size = NUM_PLAIN + 2 * hidden
    moments = Moments(np.zeros((size, size)), np.zeros(size))
    return Probe(moments, np.zeros(len(STRENGTHS)), np.zeros(2))


def predictions(probe: Probe, states: ProbeStates) -> np.ndarray:
    """f64[strengths, S] v of all states for every α; 0 if there are no targets to learn from."""
    _, number = np.unique(states.problem, return_inverse=True)
    fold = number % FOLDS
    target, weight = targets(states)
    parts = [
        _moments(states.features[fold == i], target[fold == i], weight[fold == i])
        for i in range(fold.max(initial=-1) + 1)
    ]
    predicted = np.zeros((len(STRENGTHS), len(target)))
    for i in range(len(parts)):
        moments = probe.moments
        for part in parts[:i] + parts[i + 1 :]:
            moments = moments.plus(part)
        predicted[:, fold == i] = _solve(moments) @ states.features[fold == i].T
    return predicted


def chosen(probe: Probe, predicted: np.ndarray) -> np.ndarray:
    """f64[S] the row of `predicted` for the α that had the least error in earlier iterations.

    In the first iteration, it is the row for the largest α.
    """
    best = np.argmin(probe.errors[::-1])  # the larger α in a tie
    return predicted[::-1][best]


def weight_of(probe: Probe) -> float:
    """μ from earlier iterations; 0 in the first iteration."""
    numerator, denominator = probe.gain
    return float(np.clip(numerator / denominator, 0.0, 1.0)) if denominator > 0 else 0.0


def mean_target(probe: Probe) -> float:
    """The mean target of earlier iterations; ½ in the first iteration."""
    count = probe.moments.square[0, 0]
    return float(probe.moments.cross[0] / count) if count > 0 else 0.5


def read_out(probe: Probe) -> tuple[np.ndarray, float, float]:
    """(f64[R] w, b, c), with which the fit to all targets is v = h·w + b + c·p.

    The features h, p and m are those of the module's text, and w are weights of h alone. The value
    of m is set to the mean target, so that v depends only on h and p.
    """
    weights, m = chosen(probe, _solve(probe.moments)), mean_target(probe)
    hidden_weights, product_weights = np.split(weights[NUM_PLAIN:], 2)
    kernel = hidden_weights + m * product_weights
    return kernel, float(weights[0] + m * weights[1]), float(weights[2])


def updated(
    probe: Probe,
    states: ProbeStates,
    predicted: np.ndarray,
    baseline: np.ndarray,
    is_known: np.ndarray,
) -> Probe:
    """The probe after an iteration.

    `baseline`, f[S], are the baselines b without v. `is_known`, bool[S], says whether a state has a
    baseline. `predicted` is the result of `predictions`.
    """
    target, weight = targets(states)
    moments = _moments(states.features, target, weight).plus(probe.moments, KEPT)
    v, returns = chosen(probe, predicted), states.solution_return
    difference = np.where(is_known, v - baseline, 0.0)
    gain = np.array([np.sum((returns - baseline) * difference), np.sum(difference**2)])
    errors = np.sum((predicted - returns) ** 2, axis=1)
    return Probe(moments, errors + KEPT * probe.errors, gain + KEPT * probe.gain)


def metrics(
    states: ProbeStates, v: np.ndarray, weight: float, drawn: np.ndarray
) -> dict[str, float]:
    """The squared error of v, its explained variance, its `weight` μ and its calibration.

    `drawn`, f64[S], is V̂, the mean return of the continuations of each state itself, and NaN for a
    state without any. The error does not include the noise of the targets: E[(v - V̂)·(v - G)] =
    E[(v - V)²], because v, V̂ and G are independent at s. The state's `value` would not do: with
    `values.reuse` it has the rewards of the problem's other solutions, and v has them, too. For
    each tenth of [0, 1], the calibration is the mean of G - v over states whose v lies in this
    tenth.
    """
    logged = {"value/weight": weight}
    is_drawn = np.isfinite(drawn)
    if is_drawn.any():
        error = (v - drawn) * (v - states.solution_return)
        logged["value/error"] = float(error[is_drawn].mean())
    explained = explained_variance(v, states.solution_return)
    if explained is not None:
        logged["value/explained_variance"] = explained
    residual = states.solution_return - v
    tenth = np.clip(v * 10, 0, 9).astype(int)
    for n in np.unique(tenth):
        logged[f"value/calibration/{n + 1}"] = float(residual[tenth == n].mean())
    return logged


def targets(states: ProbeStates) -> tuple[np.ndarray, np.ndarray]:
    """(f64[S] the mean of all returns known at each state, f64[S] their number)."""
    weight = states.count + 1.0
    mean_of_others = np.where(states.count > 0, states.value, 0.0)
    return (states.solution_return + states.count * mean_of_others) / weight, weight


def _moments(features: np.ndarray, target: np.ndarray, weight: np.ndarray) -> Moments:
    weighted = features * weight[:, None]
    return Moments(weighted.T @ features, weighted.T @ target)


def _solve(moments: Moments) -> np.ndarray:
    """f64[strengths, P] the weights w of the P features for every α."""
    size = len(moments.cross)
    penalty = np.ones(size)
    penalty[:NUM_PLAIN] = 1e-6  # keeps the system solvable if plain features are constant
    return np.stack(
        [
            np.linalg.solve(moments.square + np.diag(strength * penalty), moments.cross)
            for strength in STRENGTHS
        ]
    )
