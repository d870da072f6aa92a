"""The charts of metrics: which curves they have, and the coordinates of the curves' points.

A chart with at most `MAX_COLUMNS` positions shows every point. A longer chart divides the positions
into groups of equal size, and shows a group's mean, with a band that reaches from its smallest to
its largest value, so that single spikes stay visible.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from vinejax.records import formats
from vinejax.records.read import Record
from vinejax.tools.report import axes

MAX_COLUMNS = 120
MAX_DOTS = 12  # a curve with more points than this has no dots, only a line
Place = TypeVar("Place", int, float)  # a position on the x axis
# Metrics over all reward functions; every other metric reward/<name> belongs to one function.
_TOTALS = ("reward/mean", "reward/std", "reward/steps")
PASS_STYLES = (
    4  # classes of the template, `pass-1` to `pass-4`; the fifth curve gets `pass-1` again
)


class Curve(NamedTuple):
    """The curve of the metric `key` in records of `stage`.

    With `band`, the metrics <key>_low and <key>_high are the ends of the curve's interval.
    """

    key: str
    label: str
    style: str = "main"  # a class of the template: main, second, mark, pass-1 to pass-4, majority
    stage: str = "train"
    band: bool = False


class ChartSpec(NamedTuple):
    """The definition of a chart; the page leaves out charts whose curves have no points."""

    title: str
    curves: tuple[Curve, ...]
    note: str = ""
    log: bool = False
    floor: float | None = 0.0  # a value that the axis must include
    top: float | None = None
    size: axes.Size = axes.SMALL
    x_label: str = "iteration"


class CurveMark(NamedTuple):
    """A point of a curve; `low` and `high` are the ends of the logged interval, or None.

    If several points are merged into one, `y` is the mean of their values, `low` the smallest value
    or interval end, and `high` the largest. `first` and `last` are the outermost positions.
    """

    x: float
    y: float
    low: float | None
    high: float | None
    first: float
    last: float


class DrawnCurve(NamedTuple):
    """A curve in SVG: the paths of its line and band, its dots, and its last value as text."""

    label: str
    style: str
    line: str
    band: str
    dots: list[tuple[float, float]]
    last: str


class Hover(NamedTuple):
    """A column of a plot, and the box of values shown while the pointer is over this column."""

    left: float
    width: float
    x: float
    dots: list[tuple[float, str]]
    lines: list[str]
    box_left: float
    box_width: float


class Chart(NamedTuple):
    spec: ChartSpec
    frame: axes.Frame
    drawn_curves: list[DrawnCurve]
    hovers: list[Hover]
    summary: str
    is_thinned: bool

    @property
    def size(self) -> str:
        """The CSS class for the chart's size.

        The accuracy has two charts of different sizes, one for wide and one for narrow screens.
        """
        return {axes.HERO: "hero", axes.SIDE: "side"}.get(self.spec.size, "small")


def charts(records: list[Record], temperatures: tuple[str, str] | None = None) -> list[Chart]:
    """The charts of the page that have points, in reading order.

    The chart of accuracy names the `temperatures` of training and evaluation if they differ.
    """
    names = {name for record in records for name in record.values}
    heroes = [_accuracy(names, size, temperatures) for size in (axes.HERO, axes.SIDE)]
    specs = [*heroes, _rewards(names), *_HEALTH]
    drawn_charts = [draw_chart(spec, records) for spec in specs]
    return [chart for chart in drawn_charts if chart is not None]


def _accuracy(names: set[str], size: axes.Size, temperatures: tuple[str, str] | None) -> ChartSpec:
    """The chart of the training reward and of each logged pass@k and maj@k."""
    curves = [Curve("reward/mean", "training reward", "second")]
    matches = (re.fullmatch(r"eval/(pass|maj)_at_(\d+)", name) for name in names)
    num_passes = 0  # curves of pass@k with k > 1
    for is_majority, k in sorted((m[1] == "maj", int(m[2])) for m in matches if m):
        word = "maj" if is_majority else "pass"
        style = "majority" if is_majority else "main"
        is_main = (word, k) == ("pass", 1)
        if not is_main and not is_majority:
            style = f"pass-{num_passes % PASS_STYLES + 1}"
            num_passes += 1
        curves.append(Curve(f"eval/{word}_at_{k}", f"{word}@{k}", style, "eval", band=is_main))
    curves.append(Curve("test/pass_at_1", "test pass@1", "mark", "test", True))
    note = "band of pass@1 and whiskers of the test: 95% bootstrap interval"
    if any(name.startswith("eval/maj_at_") for name in names):
        note += (
            ". pass@k: some of k answers is right; maj@k: the most frequent of k answers is right"
        )
    if temperatures is not None and len(set(temperatures)) > 1:
        note += (
            f". Training samples at temperature {temperatures[0]}, the other curves at"
            f" {temperatures[1]}, so they differ for one policy"
        )
    return ChartSpec("Accuracy", tuple(curves), note, floor=0.0, top=1.0, size=size)


def _rewards(names: set[str]) -> ChartSpec:
    """The chart with the mean reward of each function in `reward.functions`."""
    parts = sorted(name for name in names if name.startswith("reward/") and name not in _TOTALS)
    curves = [
        Curve(name, name.removeprefix("reward/"), f"pass-{n % PASS_STYLES + 1}")
        for n, name in enumerate(parts)
    ]
    return ChartSpec("Rewards", tuple(curves), "mean of what each function gave")


def _single(title: str, key: str, note: str, stage: str = "train", **options) -> ChartSpec:
    return ChartSpec(title, (Curve(key, title.lower(), stage=stage),), note, **options)


def _mean_and_max(title: str, key: str, largest: str, note: str, log: bool = False) -> ChartSpec:
    curves = (Curve(f"{key}/mean", "mean"), Curve(f"{key}/max", largest, "pass-1"))
    return ChartSpec(title, curves, note, log)


_HEALTH = (
    _single("Mean step value", "values/mean", "V(s) over the states of an iteration", top=1.0),
    ChartSpec(
        "Explained variance",
        (
            Curve("values/explained_variance", "of continuations"),
            Curve("critic/explained_variance", "critic", "pass-1"),
            Curve("value/explained_variance", "learned value", "pass-2"),
        ),
        "of returns by values: 1 if V tells them, 0 if it tells nothing",
        top=1.0,
    ),
    ChartSpec(
        "Does step credit pay?",
        (Curve("credit/gain", "gain"), Curve("credit/price", "price", "pass-1")),
        "gain over the credit of outcomes per token, above 1 it pays; price in tokens of those",
    ),
    ChartSpec(
        "Labels",
        (
            Curve("credit/labels", "labels"),
            Curve("credit/coverage", "coverage", "pass-2"),
            Curve("credit/agreement", "agreement", "majority"),
        ),
        "per trained token; share of tokens that samples pass, and of samples that draw the same",
        top=1.0,
    ),
    _single("Critic's value", "critic/value", "V(s), mean over tokens"),
    _single("Critic's error", "critic/error", "squared, of value to return"),
    _single("Step rewards", "reward/steps", "sum over a solution, mean"),
    _single(
        "Problems without signal",
        "frac_reward_zero_std",
        "share whose solutions all have the same reward",
    ),
    _single("Entropy", "actor/entropy", "nats per token; 0 where the policy has no doubt"),
    _single("KL to the reference", "actor/kl", "nats per token; how far the policy has moved"),
    _single(
        "Clip fraction", "actor/clip_frac", "share of tokens whose ratio to the sampler is clipped"
    ),
    _single("Gradient norm", "actor/grad_norm", "before clipping"),
    _single("Policy loss", "actor/loss", "not a measure of progress", floor=None),
    _mean_and_max(
        "Sampler against scorer",
        "rollout/logprob_diff",
        "largest",
        "difference of a token’s log-probability; rounding alone is far below 1",
        log=True,
    ),
    _mean_and_max("Response length", "response_length", "longest", "tokens"),
    _single("Turns", "turns/mean", "ended ones of an episode, mean"),
    _single("Cut responses", "response_length/clip_ratio", "share that reached the token budget"),
    _single("Continuations", "values/rollouts", "sampled for the values of an iteration"),
    _single("Throughput", "perf/tokens_per_s", "per second"),
    _single("Supervised loss", "sft/loss", "of the worked solutions, mean of an iteration"),
    _single("SFT loss", "sft/loss", "supervised warm start", stage="sft", x_label="SFT step"),
)


def draw_chart(spec: ChartSpec, records: list[Record]) -> Chart | None:
    """A chart whose curves have at most `MAX_COLUMNS` points; None if no curve has a point."""
    points = {c: list(_points(c, records)) for c in spec.curves}
    if spec.log:  # zero has no logarithm
        points = {c: [p for p in marks if p.y > axes.TINY] for c, marks in points.items()}
    positions = sorted({p.first for marks in points.values() for p in marks})
    if not positions:
        return None
    columns = column_groups(positions)
    merged = {c: _thin(marks, columns) for c, marks in points.items() if marks}
    frame = axes.fit_frame(positions, _extent(spec, merged), spec.size, spec.log)
    drawn_curves = [draw(c, merged[c], frame, points[c][-1].y) for c in merged]
    ends = ((c.label, points[c][0].y, points[c][-1].y) for c in merged)
    summary = "; ".join(
        f"{label} {formats.three_digits(first)} to {formats.three_digits(last)}"
        for label, first, last in ends
    )
    return Chart(
        spec,
        frame,
        drawn_curves,
        hovers=hovers(spec, merged, columns, frame),
        summary=summary,
        is_thinned=len(columns) < len(positions),
    )


def _points(curve: Curve, records: list[Record]) -> Iterable[CurveMark]:
    for record in records:
        y = record.values.get(curve.key)
        if record.stage == curve.stage and y is not None:
            low = record.values.get(f"{curve.key}_low") if curve.band else None
            high = record.values.get(f"{curve.key}_high") if curve.band else None
            yield CurveMark(float(record.position), y, low, high, record.position, record.position)


def column_groups(positions: list[Place]) -> list[list[Place]]:
    """At most `MAX_COLUMNS` groups of positions, equal in size except perhaps for the last."""
    size = -(-len(positions) // MAX_COLUMNS)
    return [positions[i : i + size] for i in range(0, len(positions), size)]


def _thin(points: list[CurveMark], columns: Sequence[Sequence[float]]) -> list[CurveMark]:
    """Merges all points of a column of positions into one; a column's only point is not changed."""
    by_position = {p.first: p for p in points}
    merged = []
    for group in columns:
        inside = [by_position[i] for i in group if i in by_position]
        if len(inside) == 1:
            merged.append(inside[0])
        elif inside:
            y = sum(p.y for p in inside) / len(inside)
            low = min(p.y if p.low is None else p.low for p in inside)
            high = max(p.y if p.high is None else p.high for p in inside)
            first, last = inside[0].first, inside[-1].last
            merged.append(CurveMark((first + last) / 2, y, low, high, first, last))
    return merged


def _extent(spec: ChartSpec, merged: dict[Curve, list[CurveMark]]) -> tuple[float, float]:
    values = [v for points in merged.values() for p in points for v in (p.y, p.low, p.high)]
    extremes = [v for v in values if v is not None]
    if not spec.log:
        extremes += [v for v in (spec.floor, spec.top) if v is not None]
    return min(extremes), max(extremes)


def draw(curve: Curve, points: list[CurveMark], frame: axes.Frame, last: float) -> DrawnCurve:
    """The curve through the points, with its band, and with `last` as the text of its last value.

    A single point, or a curve of style 'mark', which has no line, has whiskers instead of a band.
    """
    places = [(frame.x(p.x), frame.y(p.y)) for p in points]
    bounded = [p for p in points if p.low is not None and p.high is not None]
    upper = [(frame.x(p.x), frame.y(p.high)) for p in bounded if p.high is not None]
    lower = [(frame.x(p.x), frame.y(p.low)) for p in bounded if p.low is not None]
    is_mark = curve.style == "mark"
    if is_mark or len(points) == 1:
        ends = zip(lower, upper, strict=True)
        band = "".join(f"M{low[0]:g} {low[1]:g}V{high[1]:g}" for low, high in ends)
    else:
        band = axes.svg_path(upper + lower[::-1]) + "Z" if len(bounded) > 1 else ""
    return DrawnCurve(
        label=curve.label,
        style=curve.style + (" whisker" if is_mark or len(points) == 1 else ""),
        line="" if is_mark else axes.svg_path(places),
        band=band,
        dots=places if is_mark or len(points) <= MAX_DOTS else [],
        last=formats.three_digits(last),
    )


def hovers(
    spec: ChartSpec,
    merged: dict[Curve, list[CurveMark]],
    columns: list[list[Place]],
    frame: axes.Frame,
) -> list[Hover]:
    """A hover for each column of positions, with the values of all curves in this column."""
    centres = [frame.x((group[0] + group[-1]) / 2) for group in columns]
    readouts = []
    for i, (group, x) in enumerate(zip(columns, centres, strict=True)):
        left = (centres[i - 1] + x) / 2 if i else frame.left
        right = (centres[i + 1] + x) / 2 if i + 1 < len(centres) else frame.right
        inside = [(c, p) for c in merged for p in merged[c] if group[0] <= p.first <= group[-1]]
        parts = [f"{spec.x_label} {span_label(group[0], group[-1])}"]
        parts += [_readout(c, p, len(spec.curves) > 1) for c, p in inside]
        dots = [(frame.y(p.y), c.style) for c, p in inside]
        readouts.append(make_hover(frame, (left, right), x, dots, parts))
    return readouts


def make_hover(
    frame: axes.Frame,
    column: tuple[float, float],
    x: float,
    dots: list[tuple[float, str]],
    lines: list[str],
) -> Hover:
    """A hover for `column` (left, right), whose box lies on the side of `x` that has more room.

    `dots` are the heights and styles of the curves' points at `x`, and `lines` is the text in the
    box.
    """
    width = 6.2 * max(map(len, lines)) + 14
    box_left = x - 8 - width if x > (frame.left + frame.right) / 2 else x + 8
    left, right = column
    return Hover(left, round(right - left, 1), x, dots, lines, round(box_left, 1), round(width, 1))


def span_label(first: float, last: float) -> str:
    ends = [str(x) if isinstance(x, int) else formats.three_digits(x) for x in (first, last)]
    return ends[0] if first == last else "–".join(ends)


def _readout(curve: Curve, point: CurveMark, with_label: bool) -> str:
    value = (
        f"{curve.label} {formats.three_digits(point.y)}"
        if with_label
        else formats.three_digits(point.y)
    )
    if point.low is None or point.high is None:
        return value
    return f"{value} [{formats.three_digits(point.low)}, {formats.three_digits(point.high)}]"
