"""Learning curves of runs: validation accuracy over episodes, tokens or seconds of training."""

import bisect
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from vinejax.records.read import Record

AXES = ("episodes", "tokens", "seconds")  # the axes over which methods are compared


class EvaluationPoint(NamedTuple):
    """An evaluation on the validation split, with the run's totals at the time of this evaluation.

    `low` and `high` are the ends of the accuracy's 95% interval. `episodes` counts the sampled
    solutions of problems, without continuations. `tokens` counts all generated tokens, with
    continuations. `seconds` is the time of training. None of these totals includes evaluation.
    """

    iteration: int  # number of finished iterations
    accuracy: float
    low: float
    high: float
    episodes: float
    tokens: float
    updates: float
    seconds: float


def learning_curve(records: Sequence[Record]) -> list[EvaluationPoint]:
    """The evaluations of a run on its validation split, in order, from the records of its log.

    An evaluation is left out if the log has no record of the iteration before it.
    """
    totals = {r.position + 1: r.values for r in records if r.stage == "train"} | {0: {}}
    points = []
    for record in records:
        accuracy = record.values.get("eval/pass_at_1")
        totals_then = totals.get(record.position)
        if record.stage != "eval" or accuracy is None or totals_then is None:
            continue
        point = EvaluationPoint(
            iteration=record.position,
            accuracy=accuracy,
            low=record.values.get("eval/pass_at_1_low", accuracy),
            high=record.values.get("eval/pass_at_1_high", accuracy),
            episodes=totals_then.get("total/episodes", 0.0),
            tokens=totals_then.get("total/tokens", 0.0),
            updates=totals_then.get("total/updates", 0.0),
            seconds=sum(x for name, x in totals_then.items() if name.startswith("timing_s/total_")),
        )
        points.append(point)
    return sorted(points)


def accuracy_at(x: Sequence[float], accuracy: Sequence[float], at: float) -> float:
    """The accuracy at the position `at`, interpolated linearly between two evaluations.

    `x` are the ascending positions of the evaluations, in episodes, tokens or seconds. Raises
    ValueError if `at` is outside their range.
    """
    if not x or not x[0] <= at <= x[-1]:
        raise ValueError(f"no evaluations around {at:g}")
    right = min(bisect.bisect_right(x, at), len(x) - 1)
    left = max(right - 1, 0)
    if x[right] == x[left]:
        return accuracy[right]
    share = (at - x[left]) / (x[right] - x[left])
    return accuracy[left] + share * (accuracy[right] - accuracy[left])


def aligned(
    x: Sequence[Sequence[float]], accuracy: Sequence[Sequence[float]]
) -> list[tuple[float, list[float]]]:
    """For each n, the median position of the runs' n-th evaluations, and the accuracy of each run.

    The list ends with the last evaluation of the run that has the fewest evaluations. `x` are the
    positions, and `accuracy` the accuracies, of each run's evaluations.
    """
    columns = zip(zip(*x, strict=False), zip(*accuracy, strict=False), strict=False)
    return [(statistics.median(places), list(scores)) for places, scores in columns]
