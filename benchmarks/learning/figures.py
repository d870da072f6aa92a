"""The figures of docs/results.md, as PNG and SVG, the same bytes for the same records.

Lines differ in dash and marker, not in colour alone, so that they can be told apart in grey.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import EngFormatter, PercentFormatter  # noqa: E402
from outcomes import Outcomes, at_the_end, group_curve  # noqa: E402
from sections import NAMES, dose_group, task_title  # noqa: E402
from variants import BASELINES, LONGER  # noqa: E402

from vinejax.analysis.learning import AXES  # noqa: E402
from vinejax.analysis.statistics import Estimate  # noqa: E402

# Colours get darker from the baselines to VinePPO; dashes and markers differ for all.
STYLES: dict[str, tuple[str, str, str]] = {
    "vineppo": ("#0b3d24", "-", "o"),
    "recommended": ("#2b7a4b", "-", "D"),
    "bisection": ("#54a377", "-.", "^"),
    "spo_chain": ("#3b6fb5", ":", "v"),
    "ppo": ("#8c6bb1", "--", "P"),
    "grpo": ("#b0580f", "-", "x"),
    "rloo": ("#d98d3d", "--", "+"),
    "grpo_seconds": ("#b0580f", ":", "x"),
    "rloo_seconds": ("#d98d3d", ":", "+"),
    "grpo_seconds_bisection": ("#b0580f", "-.", "1"),
}
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
            figure.savefig(folder / f"{name}.png", dpi=100, metadata={"Software": None})
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
            plt.close(figure)
    return names(found)


def curves(found: Outcomes, task: str) -> Figure:
    """Validation accuracy of all variants of a task over the three axes."""
    variants = [*found.experiment.variants, *found.experiment.longer]
    groups = {name: group for name in variants if (group := found.compared(task, name)) is not None}
    figure, panels = plt.subplots(
        1, len(AXES), sharey=True, figsize=(12, 4.6), layout="constrained"
    )
    for panel, axis in zip(panels, AXES, strict=True):
        for name, group in groups.items():
            # The same episodes are what the longer runs are not about.
            curve = None if axis == "episodes" and name in LONGER else group_curve(group, axis)
            if curve is None:
                continue
            colour, dash, marker = STYLES[name]
            panel.plot(
                curve.x, curve.accuracy, dash, color=colour, linewidth=1.3, marker=marker,
                markersize=5, label=name,
            )  # fmt: skip
            panel.vlines(curve.x[-1], curve.end.low, curve.end.high, color=colour, linewidth=1.0)
        panel.set_xlabel(UNITS[axis])
        panel.set_xlim(left=0)
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.grid(alpha=0.3)
    panels[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    panels[0].set_ylabel("validation accuracy")
    handles, labels = panels[-1].get_legend_handles_labels()
    if len(handles) < len(groups):  # seconds are not measured
        handles, labels = panels[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
    figure.suptitle(f"{task_title(task)}: interquartile mean over seeds, 95% interval at the end")
    return figure


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
            [dose + 0.15 * i for dose in gains],  # so that intervals do not overlap
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


def _gains(found: Outcomes, name: str, baseline: str) -> dict[int, Estimate]:
    """Gain by number of free steps, where both are recorded."""
    gains = {}
    for dose in found.experiment.doses:
        own, other = dose_group(found, dose, name), dose_group(found, dose, baseline)
        if own is not None and other is not None:
            gains[dose] = at_the_end(own, other).gain
    return gains
