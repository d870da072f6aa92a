"""The watchdog prints a warning when a run makes no progress, with the stage and the line of code.

If one of several processes hangs, the others wait for it. Each process writes its last heartbeat to
a file in the workdir, so that the warning can name the processes that are behind the others.
"""

import contextlib
import dataclasses
import faulthandler
import json
import socket
import sys
import threading

from etils import epath

from vinejax.runtime.workdir import write_atomic

FOLDER = "alive"  # folder in the workdir with a file for each of several processes
POLLS = 10  # number of polls in `silence_s` seconds
STDERR = 2  # file descriptor of standard error; sys.stderr may not have one


@dataclasses.dataclass
class Signs:
    """The last heartbeat of a process. All processes of a run have the same order of heartbeats."""

    host: str
    stage: str  # stage that began last
    count: int  # heartbeats so far


OWN_SIGNS = Signs(socket.gethostname(), "start", 0)


def sign(stage: str | None = None) -> None:
    """Records a heartbeat; called when a chunk of decoding, a minibatch or `stage` begins."""
    OWN_SIGNS.count += 1
    OWN_SIGNS.stage = stage or OWN_SIGNS.stage


class Watchdog:
    """A context manager that polls the heartbeats in a thread.

    After every `silence_s` seconds without a heartbeat, it prints a warning to standard error.
    faulthandler adds the stack of each thread, even while a thread holds Python's global lock. The
    watchdog does not end the process, because a long compilation looks like a hang.
    """

    def __init__(self, workdir: epath.Path, silence_s: float, process: int = 0, processes: int = 1):
        self._folder = workdir / FOLDER
        self._silence_s = silence_s
        self._process, self._processes = process, processes
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._write()  # at once: the file of an earlier start has a later heartbeat
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        count, polls = -1, 0  # heartbeats, and polls since their number changed
        while not self._ended.wait(self._silence_s / POLLS):
            self._write()
            polls += 1
            if OWN_SIGNS.count != count:
                count, polls = OWN_SIGNS.count, 0
                faulthandler.dump_traceback_later(self._silence_s, repeat=True, file=STDERR)
            elif polls % POLLS == 0:
                line = self.line(polls * self._silence_s / POLLS)
                with contextlib.suppress(OSError):  # the terminal may be closed
                    print(f"vinejax: warning: {line}", file=sys.stderr, flush=True)

    def line(self, silent_s: float) -> str:
        """The text of the warning after `silent_s` seconds without a heartbeat."""
        silence = f"no sign of life for {silent_s:.0f} s in stage {OWN_SIGNS.stage!r}"
        if self._processes == 1:
            return f"{silence}; it may be compiling, or a device or the grader hangs"
        signs_seen = self._read()
        missing = [str(i) for i in range(self._processes) if i not in signs_seen]
        if missing:
            return f"{silence}; nothing was ever heard of process {', '.join(missing)}"
        least = min(signs.count for signs in signs_seen.values())
        behind = [
            f"process {i} on host {signs.host}, in stage {signs.stage!r}"
            for i, signs in signs_seen.items()
            if signs.count == least
        ]
        if len(behind) == self._processes:
            return f"{silence}; all processes are as far: devices or the network between them hang"
        return f"{silence}; behind the others: {', '.join(behind)}"

    def _write(self) -> None:
        """Writes this process's last heartbeat to its file, if there are several processes."""
        if self._processes == 1:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            note = json.dumps(dataclasses.asdict(OWN_SIGNS))
            write_atomic(self._folder / f"{self._process}.json", note)
        # On a full disk the run's own writes end the run. The library of an object store that does
        # not answer for a while has errors of its own, which must not end this thread.
        except Exception:
            return

    def _read(self) -> dict[int, Signs]:
        """Index of a process -> last heartbeat, for all processes that have written a file."""
        signs_seen = {}
        for process in range(self._processes):
            try:
                note = (self._folder / f"{process}.json").read_text(encoding="utf-8")
                signs_seen[process] = Signs(**json.loads(note))
            except Exception:  # as in `_write`; or the file is missing or damaged
                continue
        return signs_seen
