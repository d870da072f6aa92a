"""Shows the progress of a run: a live panel in a terminal, plain lines anywhere else.

Both count finished iterations, as checkpoints do; metrics.jsonl numbers iterations from 0.
"""

import statistics
import sys
import threading
import time
from collections.abc import Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from vinejax.runtime.compiles import is_compiling
from vinejax.runtime.stages import is_training, number_field

# The metrics of a training iteration that are shown, and their labels.
HEADLINE = {
    "reward/mean": "reward",
    "values/mean": "value",
    "actor/kl": "kl",
    "perf/tokens_per_s": "tokens/s",
}
SHOWN_AS = {"eval": "validation"}  # stages; others are shown by their own names
MOST_NUMBERS = 4  # per line; metrics.jsonl has them all
ETA_ITERATIONS = 10  # whose mean duration the time left is estimated from
QUIET_S = 5.0  # without a line, after which a plain display says what the run is at
AGAIN_S = 30.0  # after which it says so again
LOOK_S = 1.0  # between two looks at whether it has been quiet


class Display:
    """Shows a run as plain lines: one per iteration, one per evaluation, and the messages.

    A stage that takes long, because it compiles or because the model is large, is named after its
    first `QUIET_S` seconds without a line, and every `AGAIN_S` seconds from then on.
    """

    def __init__(self, total_iterations: int, finished: int = 0):
        self.total = total_iterations
        self.finished = finished  # iterations, by this process and earlier ones
        self.durations: list[float] = []  # seconds of each training iteration of this process
        self.last = time.monotonic()
        self.name = ""  # of the stage that runs
        self.since = self.last
        self.done = (0, 0)
        self.first: tuple[int, float] | None = None  # items of the stage that were done, and when
        self.said = self.last  # when the last line was shown
        self.quiet = QUIET_S
        self.ended = threading.Event()
        self.speaker = threading.Thread(target=self.speak, daemon=True)

    def open(self) -> None:
        """Starts the display; called before the first line."""
        self.speaker.start()

    def close(self) -> None:
        """Ends the display; called after the last line, or when the run fails."""
        self.ended.set()
        self.speaker.join()

    def speak(self) -> None:
        """Says what the run is at, whenever it has been quiet for long; in a thread of its own."""
        while not self.ended.wait(LOOK_S):
            self.speak_if_quiet()

    def speak_if_quiet(self) -> None:
        if self.name and time.monotonic() - max(self.said, self.since) >= self.quiet:
            self.message(f"  {self.now()}")
            self.quiet = AGAIN_S

    def now(self) -> str:
        """The stage that runs: how much of it is done, whether it compiles, and its time so far."""
        done, total = self.done
        parts = [self.name]
        if total:
            parts.append(f"{done}/{total}")
        if is_compiling():
            parts.append("compiling")
        seconds = time.monotonic() - self.since
        parts.append(format_duration(seconds))
        if self.first is not None and self.first[0] < done < total:  # the first may have compiled
            an_item = (time.monotonic() - self.first[1]) / (done - self.first[0])
            parts.append(f"{format_duration(an_item * (total - done))} left")
        return "  ".join(parts)

    def stage(self, name: str) -> None:
        """Shows the name of the stage that begins; '' if no named stage runs."""
        self.name, self.since, self.done = name, time.monotonic(), (0, 0)
        self.first, self.quiet = None, QUIET_S

    def progress(self, done: int, total: int) -> None:
        """Shows that `done` of the `total` items of the stage are finished."""
        self.done = (done, total)
        if self.first is None:
            self.first = (done, time.monotonic())

    def message(self, text: str) -> None:
        """Shows a text unchanged."""
        print(text, flush=True)
        self.said, self.quiet = time.monotonic(), QUIET_S

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
            parts = [f"iteration {self.finished}/{self.total}"]
        elif number_field(stage) == "step":
            parts = [f"{stage} step {step}"]
        else:
            parts = [f"{SHOWN_AS.get(stage, stage)} after {iteration}"]
        parts += [f"{label} {text}" for label, text in headline(stage, metrics)]
        parts.append(f"{seconds:.1f} s")
        if stage == "train" and (eta := self.eta()):
            parts.append(eta)
        self.message("  ".join(parts))

    def eta(self) -> str:
        """'eta 1m20s', from the iterations but the first, which compiles; '' before the second."""
        recent, left = self.durations[1:][-ETA_ITERATIONS:], self.total - self.finished
        if not recent or left <= 0:
            return ""
        return f"eta {format_duration(statistics.mean(recent) * left)}"


class LiveDisplay(Display):
    """A panel at the bottom of the terminal; evaluations and messages scroll by above it."""

    def __init__(self, total_iterations: int, finished: int = 0):
        super().__init__(total_iterations, finished)
        self.console = Console(highlight=False)
        self.spinner = Spinner("dots", style="cyan")
        self.training: list[tuple[str, str]] = []  # latest numbers
        self.evaluation: list[tuple[str, str]] = []
        # Made last, because it draws the panel at once.
        self.live = Live(console=self.console, get_renderable=self.panel, refresh_per_second=4)

    def open(self) -> None:
        self.live.start()

    def close(self) -> None:
        self.stage("")
        self.live.stop()

    def message(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def line(
        self, iteration: int, step: int, stage: str, metrics: Mapping[str, float], seconds: float
    ) -> None:
        if is_training(stage):
            self.training = headline(stage, metrics)
        else:
            split = SHOWN_AS.get(stage, stage)
            self.evaluation = [(f"{split} {x}", y) for x, y in headline(stage, metrics)[:1]]
        if stage != "train":
            super().line(iteration, step, stage, metrics, seconds)

    def panel(self) -> Group:
        """Three lines: the progress of the run, its current stage, and its latest numbers."""
        where = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=max(1, self.total), completed=self.finished, width=30)
        count = Text(f"iteration {self.finished}/{self.total}", style="bold")
        where.add_row(count, bar, self.eta())
        now = Text(self.now() if self.name else "")
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
