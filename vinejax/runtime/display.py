"""What a run shows while it works: a live panel in a terminal, plain lines anywhere else."""

import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

# The few numbers of a training iteration that are worth a look while it runs.
HEADLINE = {
    "reward/mean": "reward",
    "values/mean": "value",
    "actor/kl": "kl",
    "perf/tokens_per_s": "tokens/s",
}
MOST_NUMBERS = 6  # a line; metrics.jsonl has them all
ETA_ITERATIONS = 10  # whose mean time the estimate is made of


class Display:
    """Plain lines: one an iteration, one an evaluation, and the messages."""

    def __init__(self, total_iterations: int, finished: int = 0):
        self.total = total_iterations
        self.finished = finished  # iterations, by this process or an earlier one
        self.durations: list[float] = []  # of training iterations, in seconds
        self.last = time.monotonic()

    def open(self) -> None:
        """Before the first line."""

    def close(self) -> None:
        """After the last line, or when the run fails."""

    def stage(self, name: str) -> None:
        """What the run does from now on; '' for nothing in particular."""

    def progress(self, done: int, total: int) -> None:
        """How far the stage is."""

    def message(self, text: str) -> None:
        print(text, flush=True)

    def record(self, iteration: int, step: int, stage: str, values: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl, as it is written."""
        seconds, self.last = time.monotonic() - self.last, time.monotonic()
        if stage == "train":
            self.finished = iteration + 1
            self.durations.append(seconds)
        self.line(iteration, step, stage, values, seconds)

    def line(
        self, iteration: int, step: int, stage: str, values: Mapping[str, Any], seconds: float
    ) -> None:
        parts = [f"iteration {iteration}/{self.total}"]
        if stage != "train":
            parts = [f"{stage} step {step}" if stage == "sft" else f"{stage} at {iteration}"]
        parts += [f"{label} {text}" for label, text in numbers(stage, values)]
        parts.append(f"{seconds:.1f} s")
        if stage == "train":
            parts.append(f"eta {self.eta()}")
        self.message("  ".join(parts))

    def eta(self) -> str:
        """Time to the end. The first iteration compiles, so it counts only while it is alone."""
        recent = self.durations[1:][-ETA_ITERATIONS:] or self.durations
        return duration(statistics.mean(recent) * max(0, self.total - self.finished))


class LiveDisplay(Display):
    """A panel at the bottom of the terminal; evaluations and messages scroll by above it."""

    def __init__(self, total_iterations: int, finished: int = 0):
        super().__init__(total_iterations, finished)
        self.console = Console(highlight=False)
        self.spinner = Spinner("dots", style="cyan")
        self.name = ""
        self.since = time.monotonic()
        self.done = (0, 0)
        self.training: list[tuple[str, str]] = []  # latest numbers
        self.evaluation: list[tuple[str, str]] = []
        # Last, as it draws at once.
        self.live = Live(console=self.console, get_renderable=self.panel, refresh_per_second=4)

    def open(self) -> None:
        self.live.start()

    def close(self) -> None:
        self.stage("")
        self.live.stop()

    def stage(self, name: str) -> None:
        self.name, self.since, self.done = name, time.monotonic(), (0, 0)

    def progress(self, done: int, total: int) -> None:
        self.done = (done, total)

    def message(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def line(
        self, iteration: int, step: int, stage: str, values: Mapping[str, Any], seconds: float
    ) -> None:
        found = numbers(stage, values)
        if stage in ("train", "sft"):
            self.training = found
        else:
            self.evaluation = found[:1]
        if stage != "train":
            super().line(iteration, step, stage, values, seconds)

    def panel(self) -> Group:
        """Three lines: where the run is, what it does now, and its latest numbers."""
        where = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=max(1, self.total), completed=self.finished, width=30)
        eta = f"eta {self.eta()}" if self.durations and self.finished < self.total else ""
        where.add_row(Text(f"iteration {self.finished}/{self.total}", style="bold"), bar, eta)
        now = Text("")
        if self.name:
            done, total = self.done
            count = f"{done}/{total}  " if total else ""
            now = Text(f"{self.name}  {count}{duration(time.monotonic() - self.since)}")
        self.spinner.update(text=now)
        found = "  ".join(f"{label} {text}" for label, text in self.training + self.evaluation)
        latest = Text(found, style="dim", no_wrap=True, overflow="ellipsis")
        return Group(where, self.spinner if self.name else now, latest)


def make_display(total_iterations: int, finished: int = 0) -> Display:
    """The one that suits standard output."""
    terminal = sys.stdout.isatty() and not Console().is_dumb_terminal
    return (LiveDisplay if terminal else Display)(total_iterations, finished)


def numbers(stage: str, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Labels and texts of what to show: the headline, or the stage's own metrics."""
    if stage == "train":
        labels = {name: label for name, label in HEADLINE.items() if name in values}
    else:
        bounds = ("_low", "_high")  # of confidence intervals
        own = [n for n in values if n.startswith(f"{stage}/") and not n.endswith(bounds)]
        labels = {n: n.partition("/")[2].replace("_at_", "@") for n in own[:MOST_NUMBERS]}
    return [(label, number(values[name])) for name, label in labels.items()]


def number(value: float | int) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def duration(seconds: float | int) -> str:
    """Two units at most: 7s, 1m20s, 2h05m, 3d04h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
