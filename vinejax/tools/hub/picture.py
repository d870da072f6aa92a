"""The picture of a model card: how the training went, as a PNG."""

import io
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from vinejax.records.read import Record

FILE = "training_curves.png"


class Line(NamedTuple):
    """A metric of one stage, with its interval if it was logged."""

    key: str
    label: str
    stage: str = "train"
    is_joined: bool = True  # False: points with error bars instead of a line with a band


class Panel(NamedTuple):
    """A part of the picture. It is left out if none of its curves has two points."""

    title: str
    lines: tuple[Line, ...]


PANELS = (
    Panel(
        "accuracy with 95% intervals, mean reward",
        (
            Line("eval/pass_at_1", "validation pass@1", "eval"),
            Line("test/pass_at_1", "test pass@1", "test", is_joined=False),
            Line("reward/mean", "training reward"),
        ),
    ),
    Panel("tokens of a response", (Line("response_length/mean", "mean"),)),
    Panel("mean value of a step's state", (Line("values/mean", "V"),)),
    Panel("entropy, nats per token", (Line("actor/entropy", "entropy"),)),
    Panel("KL to the start, nats per token", (Line("actor/kl", "KL"),)),
    Panel("loss of supervised training", (Line("sft/loss", "loss", "sft"),)),
)
MOST_PANELS = 4
MOST_MARKERS = 40  # a line with more points has no markers
STYLES = (("#0b3d24", "o"), ("#b0580f", "s"), ("#6b7f75", ""))  # colour and marker of a line


def picture_of(records: Sequence[Record]) -> bytes | None:
    """The PNG of the records of a run; None if they have no curve.

    The same records give the same bytes, so that a push that is repeated finds the picture there.
    """
    panels = [panel for panel in PANELS if any(_has_curve(x, records) for x in panel.lines)]
    if not panels:
        return None
    panels = panels[:MOST_PANELS]
    from matplotlib.backends.backend_agg import (  # pyright: ignore[reportMissingImports]
        FigureCanvasAgg,
    )
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.0 * rows), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(
        figure.subplots(rows, columns, squeeze=False).flat, panels, strict=False
    ):
        _draw(axes, panel, records)
    for axes in figure.axes[len(panels) :]:
        axes.set_axis_off()
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _draw(axes, panel: Panel, records: Sequence[Record]) -> None:
    """Draws the lines of a panel on matplotlib's axes, with the intervals that were logged."""
    drawn = [line for line in panel.lines if list(_points(line, records))]
    for line in drawn:
        colour, marker = STYLES[panel.lines.index(line)]
        x, y, low, high = (
            np.array(row, float) for row in zip(*_points(line, records), strict=True)
        )
        style = {"color": colour, "markersize": 4, "linewidth": 1.3, "label": line.label}
        if not line.is_joined:
            # An interval of no width may miss its value by a rounding.
            lengths = np.maximum([y - low, high - y], 0)
            axes.errorbar(x, y, lengths, fmt=marker, capsize=3, **style)
            continue
        axes.plot(x, y, marker=marker if len(x) <= MOST_MARKERS else "", **style)
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    stages = {line.stage for line in drawn}
    axes.set(title=panel.title, xlabel="optimizer step" if stages == {"sft"} else "iteration")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if len(drawn) > 1:
        axes.legend(frameon=False, fontsize=8)


def _has_curve(line: Line, records: Sequence[Record]) -> bool:
    return line.is_joined and len(list(_points(line, records))) > 1


def _points(line: Line, records: Iterable[Record]) -> Iterable[tuple[float, float, float, float]]:
    """(position, value, ends of the interval or NaN) of each record that has the metric."""
    for record in records:
        value = record.values.get(line.key)
        if record.stage == line.stage and value is not None:
            low, high = (record.values.get(f"{line.key}_{x}", math.nan) for x in ("low", "high"))
            yield record.position, value, low, high
