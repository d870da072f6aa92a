"""Compares groups of runs; the result is a JSON object, from which pages are made.

`tools/report/comparison.py` reads this object and describes its fields.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from vinejax.core.errors import UserError
from vinejax.records.read import JsonObject
from vinejax.statistics.accuracy import paired_interval
from vinejax.tools.report.compare.read_runs import ComparedRun
from vinejax.tools.report.compare.run_groups import RunGroup, differing_settings, group_runs
from vinejax.tools.report.interquartile import (
    IntervalEstimate,
    improvement_interval,
    iqm_difference,
    iqm_interval,
)
from vinejax.tools.report.learning_curve import AXES, accuracy_at


def comparison_of(runs: Sequence[ComparedRun]) -> JsonObject:
    """The record of the comparison of these runs."""
    groups = group_runs(runs)
    return {
        "task": str(runs[0].settings["data.task"]),
        "runs": len(runs),
        "groups": [_group(group) for group in groups],
        "settings": [list(row) for row in differing_settings(groups)],
        "pairs": [_pair(first, second) for first, second in itertools.combinations(groups, 2)],
        "unevaluated": [run.name for run in runs if run.rewards is None],
    }


def _group(group: RunGroup) -> dict[str, Any]:
    curves = {axis: [[point.x, *point.accuracy] for point in group.curve(axis)] for axis in AXES}
    return {
        "label": group.label,
        "curves": curves,
        "validation": group.curve("iteration")[-1].accuracy._asdict(),
        "test": None if group.test is None else _over_seeds(group.test),
        "totals": {axis: group.total(axis) for axis in ("iteration", *AXES)},
    }


def _pair(first: RunGroup, second: RunGroup) -> dict[str, Any]:
    """Compares two groups by test accuracy and, on each axis, by validation accuracy.

    An axis is the number of episodes, tokens or seconds. The groups are compared at the largest
    number that all runs of both groups have reached by their last evaluations.
    """
    rows = []
    for axis in AXES:
        at = min(first.end(axis), second.end(axis))
        _check_reached(first, axis, at)
        _check_reached(second, axis, at)
        row = _row(_scores_at(first, axis, at), _scores_at(second, axis, at))
        rows.append({"axis": axis, "at": at} | row)
    if first.test is not None and second.test is not None:
        rows.append({"axis": "test", "at": None} | _row(first.test, second.test))
    pair = {"first": first.label, "second": second.label, "rows": rows}
    return pair | _paired(first, second)


def _check_reached(group: RunGroup, axis: str, at: float) -> None:
    """Raises UserError if a run has its first evaluation on `axis` after the place `at`.

    The log of such a run lacks the evaluation before the first iteration, which is at 0.
    """
    for run in group.runs:
        start = getattr(run.curve[0], axis)
        if start > at:
            message = f"the first evaluation in metrics.jsonl is at {start:g} {axis}, and another"
            raise UserError(f"{run.name}: {message} run ends at {at:g}; leave out one of the two")


def _scores_at(group: RunGroup, axis: str, at: float) -> list[float]:
    """Validation accuracy of each run after `at` episodes, tokens or seconds (`axis`).

    It is interpolated linearly between two evaluations.
    """
    return [
        accuracy_at(
            [getattr(point, axis) for point in run.curve],
            [point.accuracy for point in run.curve],
            at,
        )
        for run in group.runs
    ]


def _row(first: list[float], second: list[float]) -> dict[str, Any]:
    """Compares the scores of the runs of two groups.

    The interval of the difference needs two runs in each group.
    """
    has_spread = min(len(first), len(second)) > 1
    difference = iqm_difference([first], [second])
    return {
        "first": _over_seeds(first),
        "second": _over_seeds(second),
        "difference": difference._asdict() if has_spread else _alone(difference.value),
        "improvement": improvement_interval([first], [second])._asdict(),
    }


def _over_seeds(scores: list[float]) -> dict[str, Any]:
    return _alone(scores[0]) if len(scores) == 1 else iqm_interval([scores])._asdict()


def _alone(value: float) -> dict[str, Any]:
    """A measure with the given value and without an interval."""
    return {"value": value, "low": None, "high": None}


def _paired(first: RunGroup, second: RunGroup) -> dict[str, Any]:
    """The fields `paired` and `has_other_problems` of a pair of groups.

    `paired` compares the groups' rewards problem by problem, if the test problems are the same.
    `has_other_problems` tells whether the groups were tested on different problems.
    """
    if first.rewards is None or second.rewards is None:
        return {"paired": None, "has_other_problems": False}
    if first.rewards.keys() != second.rewards.keys():
        return {"paired": None, "has_other_problems": True}
    paired = paired_interval(first.rewards, second.rewards)
    difference = IntervalEstimate(paired.difference, paired.low, paired.high)
    return {"paired": difference._asdict(), "has_other_problems": False}
