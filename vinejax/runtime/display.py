"""Shows the progress of a run in lines of text and, in a terminal, in progress bars.

Lines and bars show the number of finished iterations. metrics.jsonl numbers iterations from 0.
"""

import errno
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

# Metric -> label, for the metrics that the line of an iteration shows.
HEADLINE = {
    "reward/mean": "reward",
    "values/mean": "value",
    "actor/kl": "kl",
    "perf/tokens_per_s": "tokens/s",
}
SHOWN_AS = {"eval": "validation"}  # stage -> name on the screen, if the two differ
MOST_NUMBERS = 4  # maximum number of metrics in the line of an evaluation
SPEED_S = 86_400.0  # window for the estimate of the speed; an iteration can exceed rich's 30 s


class Output:
    """A text stream whose reader may end before the run, as a closed terminal or `tee` does.

    From then on its file descriptor is that of the null device. So the run can go on, or save its
    state after the signal that ended the reader, too.
    """

    def __init__(self, stream: Any):
        """`stream` is the stream that the text is written to, such as `sys.stdout`."""
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._unless_ended(lambda: self._stream.write(text))

    def flush(self) -> None:
        self._unless_ended(self._stream.flush)

    def _unless_ended(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EPIPE):
                raise
            with open(os.devnull, "wb") as null:
                os.dup2(null.fileno(), self._stream.fileno())
            return call()


class Display:
    """Prints a line for each iteration, evaluation and message on standard output.

    In a terminal, two bars below the lines show the iterations of the run and the items of the
    current stage, each with the elapsed time and an estimate of the remaining time.
    """

    def __init__(self, total_iterations: int, finished: int = 0):
        """`finished` is the number of iterations that earlier processes of the run finished."""
        self.total = total_iterations
        self.recorded_at = time.monotonic()  # time of the last record
        output = cast(IO[str], Output(sys.stdout))
        console = Console(file=output, highlight=False, force_jupyter=False)
        self.bars = Progress(
            "{task.description}",
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            speed_estimate_period=SPEED_S,
            disable=not sys.stdout.isatty() or console.is_dumb_terminal,
        )
        self.iterations = self.bars.add_task("iteration", completed=finished, total=self.total)
        self.items = self.bars.add_task("", visible=False)

    def open(self) -> None:
        """Shows the bars if standard output is a terminal."""
        self.bars.start()

    def close(self) -> None:
        """Ends the display; called after the last line, or when the run fails."""
        self.stage("")
        self.bars.stop()

    def stage(self, name: str) -> None:
        """Shows the name of the stage that begins; '' removes the bar of the last stage."""
        self.bars.remove_task(self.items)
        shown = SHOWN_AS.get(name, name)
        self.items = self.bars.add_task(shown, total=None, visible=bool(name))

    def progress(self, done: int, total: int) -> None:
        """Shows that `done` of the `total` items of the current stage are finished."""
        self.bars.update(self.items, completed=done, total=total)

    def message(self, text: str) -> None:
        """Shows a text unchanged."""
        self.bars.console.print(text, markup=False, emoji=False, soft_wrap=True)

    def record(self, iteration: int, step: int, stage: str, metrics: Mapping[str, float]) -> None:
        """Prints a line with a record's iteration or step, some metrics, and the elapsed time."""
        seconds, self.recorded_at = time.monotonic() - self.recorded_at, time.monotonic()
        parts = [f"{label} {text}" for label, text in headline(stage, metrics)]
        parts.append(f"{seconds:.1f} s")
        if stage == "train":
            self.bars.update(self.iterations, completed=iteration + 1)
            place = f"iteration {iteration + 1}/{self.total}"
            if seconds_left := self.bars.tasks[0].time_remaining:
                parts.append(f"eta {format_duration(seconds_left)}")
        elif stage == "sft":  # supervised training has no iterations
            place = f"{stage} step {step}"
        else:
            place = f"{SHOWN_AS.get(stage, stage)} after {iteration}"
        self.message("  ".join([place, *parts]))


def headline(stage: str, metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """The pairs (label, number) to print for a record of a stage.

    For 'train' they are the metrics in HEADLINE, for other stages the first few metrics.
    """
    if stage == "train":
        labels = {name: label for name, label in HEADLINE.items() if name in metrics}
    else:
        bounds = ("_low", "_high")  # of confidence intervals
        names = [n for n in metrics if n.startswith(f"{stage}/") and not n.endswith(bounds)]
        labels = {n: n.partition("/")[2].replace("_at_", "@") for n in names[:MOST_NUMBERS]}
    return [(label, format_number(metrics[name])) for name, label in labels.items()]


def format_number(value: float) -> str:
    """The number with three significant digits or, from 1000 on, as an integer with commas."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def format_duration(seconds: float) -> str:
    """The duration as a text of at most two units, such as 7s, 1m20s, 2h05m or 3d04h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
