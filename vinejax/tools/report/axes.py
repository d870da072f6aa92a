"""Maps data to the coordinates of a drawing, and computes the ticks of its axes."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from vinejax.records import formats

LEFT, RIGHT, TOP, BOTTOM = 44.0, 10.0, 12.0, 30.0  # margins around the plot, in pixels
TINY = 1e-30  # an axis treats smaller values as zero
MAX_TICKS = 7  # maximum number of ticks of a logarithmic scale


class Size(NamedTuple):
    """Width and height of a drawing in pixels, and the approximate number of ticks per axis."""

    width: float
    height: float
    x_ticks: int
    y_ticks: int


SMALL = Size(290.0, 150.0, 4, 3)
SIDE = Size(380.0, 250.0, 4, 5)
HERO = Size(776.0, 250.0, 8, 5)


class Frame(NamedTuple):
    """The box of a plot, the ranges of its two axes, and their ticks as (coordinate, label)."""

    size: Size
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    log: bool
    left: float = LEFT
    top: float = TOP

    @property
    def right(self) -> float:
        return self.size.width - RIGHT

    @property
    def bottom(self) -> float:
        return self.size.height - BOTTOM

    def x(self, value: float | int) -> float:
        return round(_place(value, self.x_range, self.left, self.right), 1)

    def y(self, value: float) -> float:
        value = math.log10(value) if self.log else value
        return round(_place(value, self.y_range, self.bottom, self.top), 1)


def fit_frame(
    positions: Sequence[float],
    extent: tuple[float, float],
    size: Size,
    log: bool = False,
    margin: float = 0.0,
    whole: bool = True,
) -> Frame:
    """A frame around data at ascending x `positions`, whose values lie in the range `extent`.

    `margin` is extra room at both ends of the x axis, in units of x, for instance half a bar. With
    `whole` the ticks of x are whole numbers, such as iterations.
    """
    first, last = positions[0] - margin, positions[-1] + margin
    if first == last:  # a single position stands in the middle
        first, last = first - 1, last + 1
    low, high = extent
    labels = _decades(low, high) if log else _round_steps(low, high, size.y_ticks)
    ends = [math.log10(v) if log else v for v in (labels[0], labels[-1])]
    shape = Frame(size, (first, last), (ends[0], ends[1]), [], [], log)
    steps = _round_steps(float(positions[0]), float(positions[-1]), size.x_ticks)
    inside = [v for v in steps if positions[0] <= v <= positions[-1]]
    if whole:
        inside = [v for v in inside if v == int(v)]
    label = "{:,.0f}".format if whole else formats.tick_label
    return shape._replace(
        x_ticks=[(shape.x(v), label(v)) for v in inside or positions[:1]],
        y_ticks=[*zip(map(shape.y, labels), formats.tick_labels(labels), strict=True)],
    )


def fit_square(values: Sequence[float], size: Size) -> Frame:
    """A frame whose two axes have the same range, which holds [0, 1] and all values."""
    labels = _round_steps(min(0.0, *values), max(1.0, *values), size.y_ticks)
    ends = labels[0], labels[-1]
    shape = Frame(size, ends, ends, [], [], log=False)
    x_ticks, y_ticks = (
        [(at(v), formats.tick_label(v)) for v in labels] for at in (shape.x, shape.y)
    )
    return shape._replace(x_ticks=x_ticks, y_ticks=y_ticks)


class Scale(NamedTuple):
    """A horizontal axis of any length, on which places and ticks are percentages of the length.

    `low` and `high` are the values at the axis ends or, with `log`, their decimal logarithms.
    """

    low: float
    high: float
    log: bool
    ticks: list[tuple[float, str]]

    def place(self, value: float) -> float:
        """The place of a value on the axis.

        A value beyond an end is put at this end. With `log`, a value without a logarithm is put at
        the low end.
        """
        if self.log:
            value = math.log10(value) if value > TINY else self.low
        return min(100.0, max(0.0, round(_place(value, (self.low, self.high), 0.0, 100.0), 2)))


def fit_log_scale(values: Sequence[float]) -> Scale:
    """A logarithmic scale around positive values, with ticks at 1, 2 and 5 times powers of ten.

    If these would be more than MAX_TICKS, the ticks are at powers of ten.
    """
    low, high = math.log10(min(values)), math.log10(max(values))
    room = 0.06 * max(high - low, 0.3)
    low, high = low - room, high + room
    exponents = range(math.floor(low), math.ceil(high) + 1)
    for factors in ((1, 2, 5), (1,)):
        ticks = [float(f"{m}e{e}") for e in exponents for m in factors]
        inside = [tick for tick in ticks if low <= math.log10(tick) <= high]
        if len(inside) < 2:  # the ends move outwards, to the nearest ticks
            low = math.log10(max(tick for tick in ticks if math.log10(tick) <= low))
            high = math.log10(min(tick for tick in ticks if math.log10(tick) >= high))
            inside = [tick for tick in ticks if low <= math.log10(tick) <= high]
        if len(inside) <= MAX_TICKS:
            break
    inside = inside[:: -(-len(inside) // MAX_TICKS)]
    scale = Scale(low, high, True, [])
    return scale._replace(ticks=[(scale.place(v), formats.tick_label(v)) for v in inside])


def share_scale() -> Scale:
    """A scale from 0 to 1, with ticks at the quarters."""
    ticks = [(100.0 * v, formats.tick_label(v)) for v in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return Scale(0.0, 1.0, False, ticks)


def svg_path(points: Sequence[tuple[float, float]]) -> str:
    """An SVG path through the points; '' for fewer than two points."""
    if len(points) < 2:
        return ""
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def _place(value: float | int, data: tuple[float, float], start: float, end: float) -> float:
    return start + (value - data[0]) / (data[1] - data[0]) * (end - start)


def _round_steps(low: float, high: float, count: int) -> list[float]:
    """About `count` ticks that enclose the range, with a step of 1, 2, 2.5 or 5 · a power of 10."""
    if high - low < max(1e-9 * max(abs(low), abs(high)), TINY):  # one value, up to rounding
        high = low + max(abs(low), 1.0)
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    """At most five powers of ten that enclose the range, with evenly spaced exponents."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)
    stride = -(-(last - first) // 4)
    last = first + -(-(last - first) // stride) * stride
    return [10.0**i for i in range(first, last + 1, stride)]
