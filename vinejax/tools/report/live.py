"""Writes the report of a running run, again and again as iterations end, and when it ends."""

import os
import time
from collections.abc import Callable

from etils import epath

from vinejax.records.read import RunReader
from vinejax.runtime.status import State, Status, write_status
from vinejax.runtime.stopping import Stopped
from vinejax.runtime.workdir import write_atomic
from vinejax.tools.report.build import PAGE, render_page
from vinejax.training.observer import Observer

SHARE = 0.02  # maximum share of the run's time that is spent on making pages
# A run counts as lost if its status is older than PATIENCE times the longest time between renewals.
PATIENCE = 3.0
MIN_PATIENCE_S = 60.0
FIRST_PATIENCE_S = 1800.0  # for the first iteration, which compiles


class LivePage(Observer):
    """Writes `report.html` and `status.json` of a run, as a context manager around the run's loop.

    If an exception ends the loop, the page shows the reason: a stop by a signal or in a notebook,
    or the error.
    """

    def __init__(
        self,
        workdir: epath.Path,
        total: int,
        done: int,
        say: Callable[[str], None],
        is_writer: bool = True,
    ):
        """`total` is the number of all iterations, and `done` the number of finished ones.

        Files are written only if `is_writer` is true. If the page cannot be written, the run goes
        on, and `say` is called with the reason.
        """
        self._workdir = workdir
        self.done = done  # finished iterations; the loop counts them
        self._total, self._start = total, done
        self._say = say
        self._is_writer = is_writer
        self._reader = RunReader(workdir)
        self._last_end: float | None = None  # when an iteration last ended
        self._longest_iteration_s = 0.0  # longest time between the ends of two iterations
        self._page_cost_s = 0.0  # seconds that the last page took
        self._next_page = 0.0  # when the next page may be made
        self._is_first = True
        self._is_over = False
        self._is_failing = False

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if error is None or self._is_over or not self._is_writer:
            return
        self._is_over = True
        if isinstance(error, Stopped):
            why = f"{error}; {error.next_start}" if error.next_start else str(error)
            self._try(lambda: self._write("stopped", why))
        elif isinstance(error, KeyboardInterrupt):  # Ctrl-C where the command's handlers are not
            why = "interrupted; the same call resumes the run"
            self._try(lambda: self._write("stopped", why))
        else:
            self._try(lambda: self._write("failed", _reason(error)))

    def renew(self) -> None:
        """Renews the status and, if this is not too soon after the last time, also the page.

        Making pages takes at most about SHARE of the run's time.
        """
        if not self._is_writer:
            return
        now = time.monotonic()
        if self._last_end is not None:
            self._longest_iteration_s = max(self._longest_iteration_s, now - self._last_end)
        self._last_end = now
        if now < self._next_page:
            self._try(lambda: self._write_status("running"))
            return
        self._try(lambda: self._write("running"))
        if self._is_first:  # not timed: it loads modules and compiles templates
            self._is_first = False
            return
        end = time.monotonic()
        self._page_cost_s = end - now
        self._next_page = end + self._page_cost_s / SHARE

    def finish(self) -> epath.Path | None:
        """Writes the page of the finished run; the page's path, or None if it cannot be written."""
        self._is_over = True
        if self._is_writer:
            self._try(lambda: self._write("finished"))
        return None if self._is_failing else self._workdir / PAGE

    def _write(self, state: State, why: str = "") -> None:
        self._write_status(state, why)
        write_atomic(self._workdir / PAGE, render_page(self._reader.read()))

    def _write_status(self, state: State, why: str = "") -> None:
        patience = FIRST_PATIENCE_S
        if self.done > self._start:
            pause = self._longest_iteration_s + self._page_cost_s / SHARE
            patience = max(MIN_PATIENCE_S, PATIENCE * pause)
        status = Status(state, self.done, self._total, time.time(), patience, why)
        write_status(self._workdir, status)

    def _try(self, write: Callable[[], None]) -> None:
        """Calls `write`. No error ends the run; only the first of consecutive errors is logged."""
        try:
            write()
            self._is_failing = False
        except Exception as error:
            if not self._is_failing:
                file = os.fspath(self._workdir / PAGE)
                self._say(f"{file}: not written ({_reason(error):.300})")
            self._is_failing = True


def _reason(error: BaseException) -> str:
    """The message of an error as one line, or the name of its class if the message is empty."""
    return " ".join(str(error).split()) or type(error).__name__
