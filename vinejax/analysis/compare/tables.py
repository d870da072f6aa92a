"""The tables of the page: totals and ends of every group, and every two groups compared."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from vinejax.analysis.accuracy import paired_interval
from vinejax.analysis.compare.charts import style_of
from vinejax.analysis.compare.groups import Group
from vinejax.analysis.learning import AXES, accuracy_at
from vinejax.analysis.report import text
from vinejax.analysis.statistics import (
    Estimate,
    improvement_interval,
    iqm_difference,
    iqm_interval,
)

NONE = "–"
OTHER_PROBLEMS = "evaluated on other problems"


class GroupRow(NamedTuple):
    """A group at its end, as texts; `style` is that of its curve."""

    style: str
    label: str
    validation: str
    test: str
    totals: list[str]  # iterations, then those of AXES


class PairRow(NamedTuple):
    """Two groups at one place, as texts."""

    place: str
    first: str
    second: str
    difference: str
    improvement: str  # probability that a run of the first is better


class Pair(NamedTuple):
    """Two groups compared. `paired` is over the test problems, '' if one was not evaluated."""

    first: str
    second: str
    rows: list[PairRow]
    paired: str


def group_rows(groups: Sequence[Group]) -> list[GroupRow]:
    rows = []
    for i, group in enumerate(groups):
        totals = [text.three_digits(group.total(axis)) for axis in ("iteration", *AXES)]
        end = group.curve("iteration")[-1].accuracy
        test = NONE if group.test is None else _over_seeds(group.test)
        rows.append(GroupRow(style_of(i), group.label, estimate(end), test, totals))
    return rows


def pairs(groups: Sequence[Group]) -> list[Pair]:
    """Every group with every later one."""
    return [
        Pair(first.label, second.label, _pair_rows(first, second), _paired(first, second))
        for first, second in itertools.combinations(groups, 2)
    ]


def _pair_rows(first: Group, second: Group) -> list[PairRow]:
    """Validation where the first run of both groups ends on every axis, and test at the ends."""
    rows = []
    for axis in AXES:
        at = min(first.end(axis), second.end(axis))
        place = f"validation at {text.three_digits(at)} {axis}"
        rows.append(_pair_row(place, _scores_at(first, axis, at), _scores_at(second, axis, at)))
    if first.test is not None and second.test is not None:
        rows.append(_pair_row("test, at the ends of the runs", first.test, second.test))
    return rows


def _scores_at(group: Group, axis: str, at: float) -> list[float]:
    """Validation accuracy of every run at a place, linear between two evaluations."""
    return [
        accuracy_at(
            [getattr(point, axis) for point in run.curve],
            [point.accuracy for point in run.curve],
            at,
        )
        for run in group.runs
    ]


def _pair_row(place: str, first: list[float], second: list[float]) -> PairRow:
    """Intervals over seeds need two runs of both groups."""
    has_spread = min(len(first), len(second)) > 1
    difference = iqm_difference([first], [second])
    improvement = NONE
    if has_spread:
        improvement = chance(improvement_interval([first], [second]))
    return PairRow(
        place,
        _over_seeds(first),
        _over_seeds(second),
        signed(difference) if has_spread else _with_sign(difference.value),
        improvement,
    )


def _over_seeds(scores: list[float]) -> str:
    if len(scores) == 1:
        return text.three_digits(scores[0])
    return estimate(iqm_interval([scores]))


def _paired(first: Group, second: Group) -> str:
    """Difference of pass@1 on the same test problems, whose interval is over problems."""
    if first.rewards is None or second.rewards is None:
        return ""
    if first.rewards.keys() != second.rewards.keys():
        return OTHER_PROBLEMS
    return signed(Estimate(*paired_interval(first.rewards, second.rewards)))


def estimate(value: Estimate) -> str:
    """'0.661 [0.630, 0.682]'."""
    middle, low, high = map(text.three_digits, value)
    return f"{middle} [{low}, {high}]"


def chance(value: Estimate) -> str:
    """'0.83 [0.62, 0.97]'."""
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"


def signed(value: Estimate) -> str:
    """'+0.041 [−0.002, +0.080]'."""
    middle, low, high = (_with_sign(x) for x in value)
    return f"{middle} [{low}, {high}]"


def _with_sign(value: float) -> str:
    rounded = round(value, 3) + 0.0
    sign = "−" if rounded < 0 else "+" if rounded > 0 else ""
    return f"{sign}{abs(rounded):.3f}"
