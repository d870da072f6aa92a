"""How well predicted values rank the next steps that a policy could take at a state.

At each of S states there are A different next steps, each with a predicted and a true value: the
step's own reward plus γ times the value after it. `next_steps.py` samples steps and rollouts; the
functions here take arrays, so that predictions may come from anywhere, such as a critic.

Source: the 1-of-5 ranking of VinePPO (`action_ranking_analyzer.py`). Its code takes the prediction
from the rollouts of the ground truth itself, counts ties as wrong and has no chance level. See
docs/credit_bench.md.
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
        ordered      = share of the pairs that are no tie in the truth and are predicted in the
                       same order; a tie in the prediction counts 1/2, which is also its chance

    Ties in the prediction are broken at random, and `top` is the expected score. All steps within
    `margin` of the best are truly best. `chance` is `top` of a constant prediction. With the
    default margin only equal values tie. Means of noisy returns differ by chance, however, unless
    all returns are equal. A margin of some standard errors of the truth makes ties of steps whose
    difference may be chance.

    Args:
      predicted, truth: [S][A] values of the next steps.
      problems: [S] ids.
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
    """|P ∩ B| / |P|: the chance that a random step of P is in B, for A steps of one state.

    P are the steps with the highest predicted value, B the steps with a true value within `margin`
    of the highest.
    """
    is_predicted = predicted >= predicted.max() - ROUNDING
    is_best = truth >= truth.max() - margin
    return float(is_best[is_predicted].mean())


def ordered_pairs(
    predicted: np.ndarray, truth: np.ndarray, margin: float = ROUNDING
) -> tuple[float, int]:
    """The number of correctly ordered pairs of the A steps, and of pairs that are no tie in truth.

    A pair whose true values differ by at most `margin` is a tie. A pair that is a tie only in the
    prediction counts 1/2 as correct.
    """
    first, second = np.triu_indices(len(truth), k=1)
    true_difference = truth[first] - truth[second]
    difference = predicted[first] - predicted[second]
    difference[np.abs(difference) <= ROUNDING] = 0.0
    counted = np.abs(true_difference) > margin
    agreement = np.sign(true_difference[counted]) * np.sign(difference[counted])
    return float(((1 + agreement) / 2).sum()), int(counted.sum())
