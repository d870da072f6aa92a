"""The figures of docs/results.md, as PNG and SVG, the same bytes for the same records.

Lines differ in dash and marker, not in colour alone, so that they can be told apart in grey.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.artist import Artist  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import (  # noqa: E402
    EngFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    PercentFormatter,
    StrMethodFormatter,
)
from outcomes import Outcomes, at_the_end, group_curve  # noqa: E402
from sections import NAMES, dose_group, task_title  # noqa: E402
from variants import BASELINES, LONGER  # noqa: E402

from vinejax.tools.report.interquartile import IntervalEstimate  # noqa: E402
from vinejax.tools.report.learning_curve import AXES  # noqa: E402

# Colours get darker from the baselines to VinePPO; dashes and markers differ for all.
STYLES: dict[str, tuple[str, str, str]] = {
    "vineppo": ("#0b3d24", "-", "o"),
    "backup": ("#2b7a4b", "-", "D"),
    "bisection": ("#54a377", "-.", "^"),
    "spo_chain": ("#3b6fb5", ":", "v"),
    "ppo": ("#8c6bb1", "--", "P"),
    "grpo": ("#b0580f", "-", "x"),
    "rloo": ("#d98d3d", "--", "+"),
    "grpo_seconds": ("#b0580f", ":", "x"),
    "rloo_seconds": ("#d98d3d", ":", "+"),
    "grpo_seconds_bisection": ("#b0580f", "-.", "1"),
}
GAP = 0.022  # between neighbouring intervals, as a share of a panel's width
UNITS = {"episodes": "policy-gradient episodes", "tokens": "generated tokens", "seconds": "seconds"}


def names(found: Outcomes) -> list[str]:
    """The figures that have data, in page order, without suffix."""
    tasks = {group.task for group in found.groups.values() if group.part == "comparison"}
    drawn = [f"curves_{task}" for task in found.experiment.tasks if task in tasks]
    return drawn + (["dose"] if any(_gains(found, *pair) for pair in _dose_pairs(found)) else [])


def write_figures(found: Outcomes, folder: Path) -> list[str]:
    """Writes the figures that have data; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    with plt.rc_context({"svg.hashsalt": "vinejax", "svg.fonttype": "none", "font.size": 9}):
        for name in names(found):
            figure = doses(found) if name == "dose" else curves(found, name.partition("_")[2])
            figure.savefig(folder / f"{name}.png", dpi=120, metadata={"Software": None})
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
            plt.close(figure)
    return names(found)


def curves(found: Outcomes, task: str) -> Figure:
    """Validation accuracy of all variants of a task over the three axes.

    Tokens and seconds are on logarithmic axes, which have no place for the start: it is a line.
    """
    variants = [*found.experiment.variants, *found.experiment.longer]
    groups = {name: group for name in variants if (group := found.compared(task, name)) is not None}
    figure, panels = plt.subplots(
        1, len(AXES), sharey=True, figsize=(10, 4.4), layout="constrained"
    )
    handles: dict[str, Artist] = {}
    for panel, axis in zip(panels, AXES, strict=True):
        # The same episodes are what the longer runs are not about.
        drawn = {
            name: curve
            for name, group in groups.items()
            if not (axis == "episodes" and name in LONGER)
            and (curve := group_curve(group, axis)) is not None
        }
        for curve in [*drawn.values()][:1]:  # with the same seeds all start at the same accuracy
            start = panel.axhline(curve.accuracy[0], color="0.4", linewidth=0.8, zorder=0)
            handles["start"] = start
        for name, curve in drawn.items():
            colour, dash, marker = STYLES[name]
            first = 0 if axis == "episodes" else 1
            handles[name] = panel.plot(
                curve.x[first:], curve.accuracy[first:], dash, color=colour, linewidth=1.3,
                marker=marker, markersize=5, markeredgewidth=1.3,
            )[0]  # fmt: skip
        _scale(panel, axis, [x for curve in drawn.values() for x in curve.x])
        _intervals(panel, {name: (curve.x[-1], curve.end) for name, curve in drawn.items()})
        panel.set_xlabel(UNITS[axis])
        panel.grid(alpha=0.3)
    panels[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    panels[0].set_ylabel("validation accuracy")
    names = ["start", *groups]
    figure.legend(
        [handles[name] for name in names if name in handles],
        [name for name in names if name in handles],
        loc="outside lower center", ncols=6, frameon=False,
    )  # fmt: skip
    title = "interquartile mean over seeds; right of each end its 95% interval"
    figure.suptitle(f"{task_title(task)}: {title}")
    return figure


def _scale(panel: Axes, axis: str, positions: list[float]) -> None:
    """Limits and ticks of an axis; on the right there is room for all intervals of one place."""
    last = max(positions, default=1.0)
    room = 1.0 + GAP * (len(STYLES) + 1)
    if axis == "episodes":
        panel.set_xlim(0, room * last)
        panel.xaxis.set_major_locator(MaxNLocator(5))
        return
    first = min((x for x in positions if x > 0), default=last)
    decades = max(math.log10(last / first), 0.3)
    panel.set_xscale("log")
    panel.set_xlim(first * 10 ** (-GAP * decades), first * 10 ** (room * decades))
    steps = (1.0,) if decades > 1.7 else (1.0, 2.0, 5.0)
    panel.xaxis.set_major_locator(LogLocator(subs=steps))
    plain = StrMethodFormatter("{x:g}")  # of seconds: the 'm' of 500m would be read as minutes
    panel.xaxis.set_major_formatter(plain if axis == "seconds" else EngFormatter(sep=""))
    panel.xaxis.set_minor_formatter(NullFormatter())


def _intervals(panel: Axes, ends: Mapping[str, tuple[float, IntervalEstimate]]) -> None:
    """The intervals of the last evaluations, side by side to the right of where curves end."""
    to_share = panel.transData + panel.transAxes.inverted()  # of the panel's width
    taken = 0.0
    for name, (x, end) in sorted(ends.items(), key=lambda item: item[1][0]):
        taken = max(to_share.transform((x, 0.0))[0], taken) + GAP
        place = to_share.inverted().transform((taken, 0.0))[0]
        colour, _, marker = STYLES[name]
        panel.errorbar(
            [place], [end.value], yerr=[[end.value - end.low], [end.high - end.value]],
            color=colour, marker=marker, markersize=4, capsize=2, linewidth=1.0,
        )  # fmt: skip


def doses(found: Outcomes) -> Figure:
    """Gain in test accuracy over each baseline against the number of free steps."""
    figure, panel = plt.subplots(figsize=(6, 4), layout="constrained")
    for i, (name, baseline) in enumerate(_dose_pairs(found)):
        gains = _gains(found, name, baseline)
        values = [100 * gain.value for gain in gains.values()]
        below = [100 * (gain.value - gain.low) for gain in gains.values()]
        above = [100 * (gain.high - gain.value) for gain in gains.values()]
        colour, dash, marker = STYLES[baseline]
        panel.errorbar(
            [dose + 0.3 * i for dose in gains],  # so that intervals do not overlap
            values, yerr=[below, above], color=colour, linestyle=dash, marker=marker, capsize=3,
            label=f"{name} over {NAMES[baseline]}",
        )  # fmt: skip
    panel.axhline(0.0, color="black", linewidth=0.8)
    panel.set_xlabel(f"free steps of {found.experiment.dose_task}")
    panel.set_ylabel("gain in test accuracy, percentage points")
    panel.grid(alpha=0.3)
    panel.legend(frameon=False)
    panel.set_title("Interquartile means over seeds, 95% intervals")
    return figure


def _dose_pairs(found: Outcomes) -> list[tuple[str, str]]:
    tested = [name for name in found.experiment.dose_variants if name not in BASELINES]
    return [(name, baseline) for name in tested for baseline in BASELINES]


def _gains(found: Outcomes, name: str, baseline: str) -> dict[int, IntervalEstimate]:
    """Gain by number of free steps, where both are recorded."""
    gains = {}
    for dose in found.experiment.doses:
        own, other = dose_group(found, dose, name), dose_group(found, dose, baseline)
        if own is not None and other is not None:
            gains[dose] = at_the_end(own, other).gain
    return gains
