"""Prepares a comparison of runs for a template: curves, results, settings, pairs of groups.

`--mode=compare` writes the record of a comparison to `compare.json` and shows it in `compare.html`.
The report of a run shows the record if the run's workdir has one. The fields of the record:

  task         dotted module of the task
  runs         number of runs
  groups       a list of objects, one for each group of runs that differ only in their seed:
                 label, and the measures `validation` and `test` at the end of the runs
                 curves   axis -> list of [place, accuracy, low, high] on the validation split
                 totals   'iteration' or an axis -> its median over runs at the end
  settings     [dotted name, [value in each group]] for each setting that differs
  pairs        a list of objects, one for each pair of groups:
                 labels `first` and `second`; measure `paired`, the difference on test problems
                 rows   `axis` and place `at` of a comparison (axis 'test': at the end), with the
                        measures `first`, `second`, `difference` and `improvement`
                 has_other_problems   whether the groups were tested on different problems
  unevaluated  names of the runs without eval/test.jsonl

A measure is an object {value, low, high}, or null if undefined. Without an interval, low and high
are null. If any part of a record is damaged, the page leaves out the whole record.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vinejax.records import formats
from vinejax.records.read import JsonObject, finite_number
from vinejax.tools.report import axes, curves

AT_ENDS = "test"  # the `axis` of a row that compares test accuracies at the ends of runs
AT_ENDS_TEXT = "test, at the ends of the runs"
OTHER_PROBLEMS = "evaluated on other problems"
EVALUATE = "python -m vinejax.main --mode=eval --config=FILE --workdir=RUN"
MAX_GROUPS = 40
MAX_TEXT = 400  # characters of a setting's value
STYLES = 8  # classes of the template, `curve-1` to `curve-8`; the ninth group gets `curve-1` again
NOTE = "validation pass@1, 95% intervals"
TITLES = {
    "episodes": ("Over policy-gradient episodes", NOTE),
    "tokens": ("Over generated tokens", f"{NOTE}; continuations included"),
    "seconds": ("Over seconds", f"{NOTE}; each run's own clock"),
}
_signed = functools.partial(formats.decimals, places=3, signed=True)


class GroupRow(NamedTuple):
    """The final results of a group as texts; `style` is the CSS class of the group's curve."""

    style: str
    label: str
    validation: str
    test: str
    totals: list[str]  # the number of iterations, then the total on each axis


class PairRow(NamedTuple):
    """The comparison of two groups as texts, after equally long training or on the test split."""

    place: str
    first: str
    second: str
    difference: str
    improvement: str  # probability that a run of the first group is better


class RunPair(NamedTuple):
    """The comparison of two groups; `paired` is '' if a group has no rewards of test problems."""

    first: str
    second: str
    rows: list[PairRow]
    paired: str

    @property
    def line(self) -> str:
        """One row as a line: that of the test split, or else that of equally many episodes."""
        row = next((row for row in self.rows if row.place == AT_ENDS_TEXT), self.rows[0])
        chance = f"P(first is better) {row.improvement}"
        accuracies = f"{row.first} and {row.second}"
        return f"{self.first} against {self.second}, {row.place}: {accuracies}, {chance}"


class ComparisonView(NamedTuple):
    task: str
    num_runs: int
    groups: list[GroupRow]
    charts: list[curves.Chart]
    settings: list[tuple[str, list[str]]]
    pairs: list[RunPair]
    unevaluated: list[str]
    evaluate: str = EVALUATE

    @property
    def title(self) -> str:
        return " · ".join(group.label for group in self.groups)


def comparison_view(record: JsonObject) -> ComparisonView | None:
    """The view of a record; None if it is empty or damaged."""
    try:
        return _view(record)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None


def _view(raw: JsonObject) -> ComparisonView | None:
    groups = _list(raw["groups"])[:MAX_GROUPS]
    if not groups:
        return None
    charts = [axis_chart(axis, groups) for axis in TITLES]
    return ComparisonView(
        task=_text(raw["task"]),
        num_runs=int(_number(raw["runs"])),
        groups=[_group_row(i, group) for i, group in enumerate(groups)],
        charts=[chart for chart in charts if chart is not None],
        settings=[
            (_text(name), [_text(value) for value in _list(values)[:MAX_GROUPS]])
            for name, values in _list(raw["settings"])
        ],
        pairs=[_pair(pair) for pair in _list(raw["pairs"])[: MAX_GROUPS**2]],
        unevaluated=[_text(name) for name in _list(raw["unevaluated"])],
    )


def _group_row(number: int, group: JsonObject) -> GroupRow:
    totals: Any = group["totals"]
    return GroupRow(
        style=style_of(number),
        label=_text(group["label"]),
        validation=_shown(group["validation"], formats.three_digits),
        test=_shown(group["test"], formats.three_digits),
        totals=[formats.three_digits(_number(totals[axis])) for axis in ("iteration", *TITLES)],
    )


def _pair(raw: JsonObject) -> RunPair:
    paired = _shown(raw["paired"], _signed) if raw["paired"] is not None else ""
    return RunPair(
        first=_text(raw["first"]),
        second=_text(raw["second"]),
        rows=[_pair_row(row) for row in _list(raw["rows"])],
        paired=OTHER_PROBLEMS if raw["has_other_problems"] else paired,
    )


def _pair_row(raw: JsonObject) -> PairRow:
    place = AT_ENDS_TEXT
    if raw["axis"] != AT_ENDS:
        place = f"validation at {formats.three_digits(_number(raw['at']))} {_text(raw['axis'])}"
    return PairRow(
        place=place,
        first=_shown(raw["first"], formats.three_digits),
        second=_shown(raw["second"], formats.three_digits),
        difference=_shown(raw["difference"], _signed),
        improvement=_shown(raw["improvement"], "{:.2f}".format),
    )


def _points(raw: object) -> list[curves.CurveMark]:
    points = []
    for point in _list(raw):
        x, value, low, high = map(_number, _list(point))
        points.append(curves.CurveMark(x, value, low, high, x, x))
    if not points:
        raise ValueError("a curve without points")
    return points


# --- curves


def style_of(number: int) -> str:
    """The CSS class of a group's curve; `number` counts groups from 0."""
    return f"curve-{number % STYLES + 1}"


def axis_chart(axis: str, groups: Sequence[Any]) -> curves.Chart | None:
    """The groups' curves over an axis; None if all evaluations are at one place of the axis."""
    marks = {
        curves.Curve(axis, _text(group["label"]), style_of(i)): _points(group["curves"][axis])
        for i, group in enumerate(groups)
    }
    positions = sorted({point.x for points in marks.values() for point in points})
    if len(positions) < 2:
        return None
    values = [v for points in marks.values() for p in points for v in p[1:4] if v is not None]
    frame = axes.fit_frame(positions, (min(values), max(values)), axes.SIDE, whole=False)
    title, note = TITLES[axis]
    spec = curves.ChartSpec(title, tuple(marks), note, size=axes.SIDE, x_label=axis)
    drawn_curves = [curves.draw(c, points, frame, points[-1].y) for c, points in marks.items()]
    summary = "; ".join(
        f"{curve.label} {formats.three_digits(points[0].y)} to {formats.three_digits(points[-1].y)}"
        for curve, points in marks.items()
    )
    hovers = curves.hovers(spec, marks, curves.column_groups(positions), frame)
    return curves.Chart(spec, frame, drawn_curves, hovers, summary, is_thinned=False)


# --- numbers and texts; ValueError or TypeError for other values


def _shown(raw: Any, show: Callable[[float], str]) -> str:
    """A measure as '0.661 [0.630, 0.682]', or '0.661' without an interval; an en dash for None."""
    if raw is None:
        return "–"
    value, low, high = (raw[key] for key in ("value", "low", "high"))
    interval = "" if None in (low, high) else f" [{show(_number(low))}, {show(_number(high))}]"
    return show(_number(value)) + interval


def _number(raw: object) -> float:
    number = finite_number(raw)
    if number is None:
        raise ValueError(f"not a number: {raw!r:.80}")
    return number


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise TypeError("not a text")
    return formats.clip(raw, MAX_TEXT).text


def _list(raw: object) -> list:
    if not isinstance(raw, list | tuple):
        raise TypeError("not a list")
    return list(raw)
