"""Shows the progress of a run: a live panel in a terminal, plain lines anywhere else."""

import statistics
import sys
import time
from collections.abc import Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from vinejax.runtime.stages import is_training, number_field

# The metrics of a training iteration that are shown, and their labels.
HEADLINE = {
    "reward/mean": "reward",
    "values/mean": "value",
    "actor/kl": "kl",
    "perf/tokens_per_s": "tokens/s",
}
MOST_NUMBERS = 6  # per line; metrics.jsonl has them all
ETA_ITERATIONS = 10  # whose mean duration the time left is estimated from


class Display:
    """Shows a run as plain lines: one per iteration, one per evaluation, and the messages."""

    def __init__(self, total_iterations: int, finished: int = 0):
        self.total = total_iterations
        self.finished = finished  # iterations, by this process and earlier ones
        self.durations: list[float] = []  # seconds of each training iteration of this process
        self.last = time.monotonic()

    def open(self) -> None:
        """Starts the display; called before the first line."""

    def close(self) -> None:
        """Ends the display; called after the last line, or when the run fails."""

    def stage(self, name: str) -> None:
        """Shows the name of the stage that begins; '' if no named stage runs."""

    def progress(self, done: int, total: int) -> None:
        """Shows that `done` of the `total` items of the stage are finished."""

    def message(self, text: str) -> None:
        """Shows a text unchanged."""
        print(text, flush=True)

    def record(self, iteration: int, step: int, stage: str, metrics: Mapping[str, float]) -> None:
        """Shows a record of metrics.jsonl, and updates the estimate of the time left."""
        seconds, self.last = time.monotonic() - self.last, time.monotonic()
        if stage == "train":
            self.finished = iteration + 1
            self.durations.append(seconds)
        self.line(iteration, step, stage, metrics, seconds)

    def line(
        self, iteration: int, step: int, stage: str, metrics: Mapping[str, float], seconds: float
    ) -> None:
        """Prints one line: the iteration or step, the headline of `metrics`, and the time taken."""
        if stage == "train":
            parts = [f"iteration {iteration}/{self.total}"]
        elif number_field(stage) == "step":
            parts = [f"{stage} step {step}"]
        else:
            parts = [f"{stage} at {iteration}"]
        parts += [f"{label} {text}" for label, text in headline(stage, metrics)]
        parts.append(f"{seconds:.1f} s")
        if stage == "train":
            parts.append(f"eta {self.eta()}")
        self.message("  ".join(parts))

    def eta(self) -> str:
        """The time left. The first iteration compiles, so it counts only until there is another."""
        recent = self.durations[1:][-ETA_ITERATIONS:] or self.durations
        return format_duration(statistics.mean(recent) * max(0, self.total - self.finished))


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
        # Made last, because it draws the panel at once.
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
        self, iteration: int, step: int, stage: str, metrics: Mapping[str, float], seconds: float
    ) -> None:
        if is_training(stage):
            self.training = headline(stage, metrics)
        else:
            self.evaluation = headline(stage, metrics)[:1]
        if stage != "train":
            super().line(iteration, step, stage, metrics, seconds)

    def panel(self) -> Group:
        """Three lines: the progress of the run, its current stage, and its latest numbers."""
        where = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=max(1, self.total), completed=self.finished, width=30)
        eta = f"eta {self.eta()}" if self.durations and self.finished < self.total else ""
        where.add_row(Text(f"iteration {self.finished}/{self.total}", style="bold"), bar, eta)
        now = Text("")
        if self.name:
            done, total = self.done
            count = f"{done}/{total}  " if total else ""
            now = Text(f"{self.name}  {count}{format_duration(time.monotonic() - self.since)}")
        self.spinner.update(text=now)
        numbers = "  ".join(f"{label} {text}" for label, text in self.training + self.evaluation)
        latest = Text(numbers, style="dim", no_wrap=True, overflow="ellipsis")
        return Group(where, self.spinner if self.name else now, latest)


def make_display(total_iterations: int, finished: int = 0) -> Display:
    """A live panel if standard output is a terminal that can draw it, else plain lines."""
    terminal = sys.stdout.isatty() and not Console().is_dumb_terminal
    return (LiveDisplay if terminal else Display)(total_iterations, finished)


def headline(stage: str, metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """(label, number) of the metrics to show: HEADLINE, or the first metrics of another stage."""
    if stage == "train":
        labels = {name: label for name, label in HEADLINE.items() if name in metrics}
    else:
        bounds = ("_low", "_high")  # of confidence intervals
        names = [n for n in metrics if n.startswith(f"{stage}/") and not n.endswith(bounds)]
        labels = {n: n.partition("/")[2].replace("_at_", "@") for n in names[:MOST_NUMBERS]}
    return [(label, format_number(metrics[name])) for name, label in labels.items()]


def format_number(value: float) -> str:
    """Three significant digits; from 1000 on whole numbers with commas."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def format_duration(seconds: float) -> str:
    """A time in two units at most: 7s, 1m20s, 2h05m, 3d04h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
