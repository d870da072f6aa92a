"""The watchdog: a run that gives no sign of life says so, and where, instead of hanging silently.

Of several processes all wait for the one that hangs. Each writes its last sign to a file in the
workdir, so that the line can name the processes that are behind the others.
"""

import json
import socket
import sys
import threading
import time
from typing import Any, NamedTuple

from etils import epath

from vinejax.runtime.signs import LAST, sign
from vinejax.runtime.workdir import write_atomic

FOLDER = "alive"  # of the workdir: a file for each process, if there are several
LOOKS = 10  # in the time after which a process counts as silent


class Seen(NamedTuple):
    """The last sign of a process."""

    host: str
    stage: str
    count: int


class Watchdog:
    """Looks for signs of life, in a thread; a context manager, entered when the first may come.

    After `silence_s` seconds without one, and again after as many more, it prints a line to
    standard error. It ends nothing: a long compilation looks the same.
    """

    def __init__(self, workdir: epath.Path, silence_s: float, process: int = 0, processes: int = 1):
        self._folder = workdir / FOLDER
        self._silence_s = silence_s
        self._process, self._processes = process, processes
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        sign()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        barked = 0.0
        while not self._ended.wait(self._silence_s / LOOKS):
            self._write()
            silent_s = time.monotonic() - LAST.at
            if silent_s < self._silence_s:
                barked = 0.0
            elif silent_s - barked >= self._silence_s:
                barked = silent_s
                print(f"vinejax: warning: {self.line(silent_s)}", file=sys.stderr, flush=True)

    def line(self, silent_s: float) -> str:
        """What is said after so many seconds of silence."""
        said = f"no sign of life for {silent_s:.0f} s in stage {LAST.stage or 'start'!r}"
        if self._processes == 1:
            return f"{said}; it may be compiling, or a device or the grader hangs"
        seen = self._read()
        missing = [str(i) for i in range(self._processes) if i not in seen]
        if missing:
            return f"{said}; nothing was ever heard of process {', '.join(missing)}"
        least = min(one.count for one in seen.values())
        behind = [
            f"process {i} on host {one.host}, in stage {one.stage!r}"
            for i, one in sorted(seen.items())
            if one.count == least
        ]
        if len(behind) == self._processes:
            return f"{said}; all processes are as far: devices or the network between them hang"
        return f"{said}; behind the others: {', '.join(behind)}"

    def _write(self) -> None:
        """Notes the last sign of this process where the others see it."""
        if self._processes == 1:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            seen = Seen(socket.gethostname(), LAST.stage, LAST.count)
            write_atomic(self._folder / f"{self._process}.json", json.dumps(seen._asdict()))
        except OSError:  # a full disk ends the run where it matters
            return

    def _read(self) -> dict[int, Seen]:
        """The last signs of all processes that have given one."""
        seen = {}
        for process in range(self._processes):
            try:
                found: dict[str, Any] = json.loads(
                    (self._folder / f"{process}.json").read_text(encoding="utf-8")
                )
                seen[process] = Seen(**found)
            except (OSError, ValueError, TypeError):
                continue
        return seen
