"""How well predicted values rank the next steps that a policy could take at a state.

At each of S states there are A different next steps, each with a predicted and a true value. The
value of a step is its own reward plus γ times the value of the state after it. `next_steps.py`
samples steps and rollouts. Predictions may be means of rollouts or a critic's values.

The source is the 1-of-5 ranking of VinePPO (`action_ranking_analyzer.py`). That code predicts with
the rollouts of the ground truth, counts ties as wrong and has no chance level
(docs/credit_bench.md).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from vinejax.tools.bench.intervals import Bootstrap, Measure

# Values that differ by at most this are ties: means of equal returns may differ by rounding.
ROUNDING = 1e-6


@dataclasses.dataclass(frozen=True)
class RankingScores:
    """Measures of a ranking; `ranking_scores` has the equations."""

    states: int
    problems: int
    alternatives: float | None  # mean number of next steps per state
    pairs: int  # pairs of next steps of the same state that are no tie in the truth
    top: Measure
    chance: Measure
    above_chance: Measure
    ordered: Measure


def ranking_scores(
    predicted: Sequence[ArrayLike],
    truth: Sequence[ArrayLike],
    problems: Sequence[str],
    margin: float = ROUNDING,
) -> RankingScores:
    """Scores of the ranking at S states, with 95% bootstrap intervals over problems.

        top          = mean over states of |P ∩ B| / |P|    P: steps predicted best
        chance       = mean over states of |B| / A          B: steps truly best
        above_chance = top - chance
        ordered      = share of correctly ordered pairs, among all pairs that are no tie in the
                       truth; a tie in the prediction counts as half a correct pair

    `top` is the expected score if ties in the prediction are broken at random. B has all steps
    whose true value is within `margin` of the largest. `chance` is `top` of a constant prediction,
    for which `ordered` would be 1/2. With the default margin only equal true values are ties.
    Because true values are means of noisy returns, a margin of some standard errors is better: then
    steps whose difference may be due to chance are ties.

    Args:
      predicted, truth: [S][A] values of the next steps.
      problems: [S] ids of the states' problems.
      margin: the largest difference of true values that is a tie, at least 0.

    Raises ValueError if lengths differ, a state has no next step or a value is not finite.
    """
    lengths = [*map(len, (predicted, truth, problems))]
    if len(set(lengths)) > 1:
        raise ValueError(f"predictions, truth, problems of lengths {lengths}")
    top, chance, right, pairs = np.zeros((4, len(truth)))
    sizes = np.array([len(np.atleast_1d(values)) for values in truth])
    for s, pair in enumerate(zip(predicted, truth, strict=True)):
        p, t = (np.asarray(values, np.float64) for values in pair)
        if p.shape != t.shape or p.ndim != 1 or not (np.isfinite([p, t]).all() and p.size):
            raise ValueError(f"state {s}: predicted {p.tolist()}, true {t.tolist()}")
        top[s], chance[s] = top_score(p, t, margin), top_score(np.zeros(len(t)), t, margin)
        right[s], pairs[s] = ordered_pairs(p, t, margin)
    bootstrap = Bootstrap(problems)
    return RankingScores(
        states=len(sizes),
        problems=bootstrap.num_problems,
        alternatives=float(sizes.mean()) if len(sizes) else None,
        pairs=int(pairs.sum()),
        top=bootstrap.mean(top),
        chance=bootstrap.mean(chance),
        above_chance=bootstrap.mean(top - chance),
        ordered=bootstrap.ratio(right, pairs),
    )


def top_score(predicted: np.ndarray, truth: np.ndarray, margin: float = ROUNDING) -> float:
    """|P ∩ B| / |P| for one state: the probability that a random step of P is in B.

    P contains the steps with the highest predicted value. B contains the steps whose true value is
    within `margin` of the highest.
    """
    is_predicted = predicted >= predicted.max() - ROUNDING
    is_best = truth >= truth.max() - margin
    return float(is_best[is_predicted].mean())


def ordered_pairs(
    predicted: np.ndarray, truth: np.ndarray, margin: float = ROUNDING
) -> tuple[float, int]:
    """The number of correctly ordered pairs of one state's steps, and of all pairs that count.

    A pair counts if its true values differ by more than `margin`. If its predicted values are
    equal, it is half a correct pair.
    """
    first, second = np.triu_indices(len(truth), k=1)
    true_difference = truth[first] - truth[second]
    difference = predicted[first] - predicted[second]
    difference[np.abs(difference) <= ROUNDING] = 0.0
    counted = np.abs(true_difference) > margin
    agreement = np.sign(true_difference[counted]) * np.sign(difference[counted])
    return float(((1 + agreement) / 2).sum()), int(counted.sum())
