"""The chart of the time of iterations, with a stacked bar per iteration and a colour per phase."""

import math
import statistics
from typing import NamedTuple

from vinejax.records import formats
from vinejax.records.read import Record
from vinejax.tools.report import axes, curves

PHASES = ("rollout", "value", "score", "train")


class PhaseView(NamedTuple):
    """One phase in the chart: the SVG path of its bars, and its share of the total time."""

    name: str
    bars: str
    share: float


class CutBar(NamedTuple):
    """A bar that is higher than the plot: its left edge, its width, and its seconds as text."""

    x: float
    width: float
    seconds: str


class TimeChart(NamedTuple):
    frame: axes.Frame
    phases: list[PhaseView]
    hovers: list[curves.Hover]
    total: float  # seconds
    cuts: list[CutBar]


def time_chart(records: list[Record]) -> TimeChart | None:
    """The chart of seconds per iteration and phase; None if no phase was timed.

    In a long run a bar has the means of one group of iterations (`curves.column_groups`).
    """
    rows = {r.position: _seconds(r) for r in records if r.stage == "train"}
    rows = {position: seconds for position, seconds in rows.items() if any(seconds)}
    if not rows:
        return None
    groups = curves.column_groups(sorted(rows))
    means = [[sum(rows[i][p] for i in g) / len(g) for p in range(len(PHASES))] for g in groups]
    margin = 0.5 if len(groups) > 1 else 2.5  # a single bar would fill the plot
    heights = [sum(mean) for mean in means]
    top = highest_shown(heights)
    frame = axes.fit_frame(sorted(rows), (0.0, top), axes.SIDE, margin=margin)
    totals = [sum(row[p] for row in rows.values()) for p in range(len(PHASES))]
    total = sum(totals)
    phases = [
        PhaseView(name, _bars(frame, groups, means, p), totals[p] / total)
        for p, name in enumerate(PHASES)
    ]
    hovers = [_hover(frame, g, m) for g, m in zip(groups, means, strict=True)]
    cuts = []
    for group, height in zip(groups, heights, strict=True):
        if height > frame.y_range[1]:
            left, width = _column(frame, group)
            cuts.append(CutBar(left, width, formats.three_digits(height)))
    return TimeChart(frame, [p for p in phases if p.share], hovers, total, cuts)


def highest_shown(heights: list[float]) -> float:
    """The height of the highest bar that is no outlier, at which the axis ends.

    An iteration that compiles takes many times as long as others; its bar would dwarf all others.
    Bars of more than three times the median are outliers if they are at most a fifth of all bars.
    """
    usual = [height for height in heights if height <= 3 * statistics.median(heights)]
    return max(usual) if 5 * (len(heights) - len(usual)) <= len(heights) else max(heights)


def _seconds(record: Record) -> list[float]:
    return [max(0.0, record.values.get(f"timing_s/{phase}", 0.0)) for phase in PHASES]


def _bars(frame: axes.Frame, groups: list[list[int]], means: list[list[float]], phase: int) -> str:
    drawn = []
    for group, mean in zip(groups, means, strict=True):
        below, above = math.fsum(mean[:phase]), math.fsum(mean[: phase + 1])
        left, width = _column(frame, group)
        low, high = frame.y(below), max(frame.top, frame.y(above))
        if low > high:
            drawn.append(f"M{left:g} {low:g}V{high:g}h{width:g}V{low:g}z")
    return "".join(drawn)


def _column(frame: axes.Frame, group: list[int]) -> tuple[float, float]:
    left, right = frame.x(group[0] - 0.5), frame.x(group[-1] + 0.5)
    inset = 0.6 if right - left > 6 else 0.0  # gaps between thin bars would shimmer
    return round(left + inset, 1), round(right - left - 2 * inset, 1)


def _hover(frame: axes.Frame, group: list[int], mean: list[float]) -> curves.Hover:
    left, width = _column(frame, group)
    span = curves.span_label(group[0], group[-1])
    lines = [f"iteration {span}: {formats.three_digits(sum(mean))} s"]
    lines += [
        f"{name} {formats.three_digits(m)} s" for name, m in zip(PHASES, mean, strict=True) if m
    ]
    return curves.make_hover(frame, (left, left + width), round(left + width / 2, 1), [], lines)
