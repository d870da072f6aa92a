"""The learning curves of compared groups over episodes, tokens and seconds."""

from collections.abc import Sequence
from typing import NamedTuple

from vinejax.report import axes, curves, text

STYLES = 8  # classes of the template, `curve-1` to `curve-8`; the ninth group has `curve-1` again
SIZE = axes.SIDE
TITLES = {
    "episodes": ("Over policy-gradient episodes", "episodes"),
    "tokens": ("Over generated tokens", "tokens, continuations included"),
    "seconds": ("Over seconds", "seconds of training, by each run's own clock"),
}


class CurvePoint(NamedTuple):
    """An evaluation of a group: its place on an axis, and accuracy with its interval."""

    x: float
    value: float
    low: float
    high: float


class GroupCurve(NamedTuple):
    """A group's curve on one axis; at least one point."""

    label: str
    points: list[CurvePoint]


def style_of(number: int) -> str:
    """The class of the group `number`, from 0."""
    return f"curve-{number % STYLES + 1}"


def axis_chart(axis: str, groups: Sequence[GroupCurve]) -> curves.Chart | None:
    """The chart of an axis; None for an axis on which every run stands still."""
    points = [group.points for group in groups]
    positions = sorted({point.x for curve in points for point in curve})
    if len(positions) < 2:
        return None
    values = [v for curve in points for p in curve for v in (p.value, p.low, p.high)]
    frame = axes.fit_frame(positions, (min(values), max(values)), SIZE, whole=False)
    title, x_label = TITLES[axis]
    specs = tuple(curves.Curve(axis, group.label, style_of(i)) for i, group in enumerate(groups))
    paths = [_draw(spec, curve, frame) for spec, curve in zip(specs, points, strict=True)]
    summary = "; ".join(
        f"{group.label} {_shown(group.points[0])} to {_shown(group.points[-1])}" for group in groups
    )
    spec = curves.Spec(title, specs, "validation pass@1, 95% intervals", size=SIZE, x_label=x_label)
    hovers = _hovers(specs, points, positions, frame)
    return curves.Chart(spec, frame, paths, hovers, summary, is_thinned=False)


def _draw(spec: curves.Curve, points: list[CurvePoint], frame: axes.Frame) -> curves.DrawnCurve:
    placed = [(frame.x(p.x), frame.y(p.value)) for p in points]
    upper = [(frame.x(p.x), frame.y(p.high)) for p in points]
    lower = [(frame.x(p.x), frame.y(p.low)) for p in points]
    return curves.DrawnCurve(
        label=spec.label,
        style=spec.style,
        line=axes.svg_path(placed),
        band=axes.svg_path(upper + lower[::-1]) + "Z" if len(points) > 1 else "",
        dots=placed if len(points) <= curves.MAX_COLUMNS // 4 else [],
        last=_shown(points[-1]),
    )


def _hovers(
    specs: Sequence[curves.Curve],
    points: Sequence[list[CurvePoint]],
    positions: list[float],
    frame: axes.Frame,
) -> list[curves.Hover]:
    """A readout per position, or per group of positions where there are many."""
    size = -(-len(positions) // curves.MAX_COLUMNS)
    columns = [positions[i : i + size] for i in range(0, len(positions), size)]
    centres = [frame.x((column[0] + column[-1]) / 2) for column in columns]
    hovers = []
    for i, (column, x) in enumerate(zip(columns, centres, strict=True)):
        left = (centres[i - 1] + x) / 2 if i else frame.left
        right = (centres[i + 1] + x) / 2 if i + 1 < len(centres) else frame.right
        inside = [
            (spec, point)
            for spec, curve in zip(specs, points, strict=True)
            for point in curve
            if column[0] <= point.x <= column[-1]
        ]
        lines = [f"{spec.label} at {text.three_digits(p.x)}: {_interval(p)}" for spec, p in inside]
        dots = [(frame.y(p.value), spec.style) for spec, p in inside]
        hovers.append(curves.make_hover(frame, (left, right), x, dots, lines))
    return hovers


def _shown(point: CurvePoint) -> str:
    return text.three_digits(point.value)


def _interval(point: CurvePoint) -> str:
    value, low, high = map(text.three_digits, point[1:])
    return f"{value} [{low}, {high}]"
