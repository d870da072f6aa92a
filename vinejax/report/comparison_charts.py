"""The learning curves of compared groups over episodes, tokens and seconds."""

from collections.abc import Sequence
from typing import NamedTuple

from vinejax.report import axes, curves, text

STYLES = 8  # classes of the template, `curve-1` to `curve-8`; the ninth group has `curve-1` again
SIZE = axes.SIDE
NOTE = "validation pass@1, 95% intervals"
TITLES = {
    "episodes": ("Over policy-gradient episodes", NOTE),
    "tokens": ("Over generated tokens", f"{NOTE}; continuations included"),
    "seconds": ("Over seconds", f"{NOTE}; each run's own clock"),
}


class GroupCurve(NamedTuple):
    """A group's curve on one axis; at least one point."""

    label: str
    points: list[curves.Mark]


def style_of(number: int) -> str:
    """The class of the group `number`, from 0."""
    return f"curve-{number % STYLES + 1}"


def axis_chart(axis: str, groups: Sequence[GroupCurve]) -> curves.Chart | None:
    """The chart of an axis; None for an axis on which every run stands still."""
    positions = sorted({point.x for group in groups for point in group.points})
    if len(positions) < 2:
        return None
    values = [v for group in groups for p in group.points for v in p[1:4] if v is not None]
    frame = axes.fit_frame(positions, (min(values), max(values)), SIZE, whole=False)
    marks = {
        curves.Curve(axis, group.label, style_of(i)): group.points for i, group in enumerate(groups)
    }
    title, note = TITLES[axis]
    spec = curves.Spec(title, tuple(marks), note, size=SIZE, x_label=axis)
    drawn = [curves.draw(c, points, frame, points[-1].y) for c, points in marks.items()]
    summary = "; ".join(
        f"{group.label} {text.three_digits(group.points[0].y)} to"
        f" {text.three_digits(group.points[-1].y)}"
        for group in groups
    )
    hovers = curves.hovers(spec, marks, curves.column_groups(positions), frame)
    return curves.Chart(spec, frame, drawn, hovers, summary, is_thinned=False)
