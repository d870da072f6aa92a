"""The command line, that notes where it is, and can be made to die there.

FAULTS_EVENTS names a file that gets a line `stage tokens` for every event: a chunk of decoding, a
minibatch, a file that is written but not renamed, a save that begins, the report if there is
one. `tokens` are those that this process has decoded. FAULTS_KILL, 'event delay signal', sends
itself a signal `delay` milliseconds after the event of that number, from 1. FAULTS_FILL, 'event
file', fills the disk with that file at the event.
"""

import contextlib
import os
import threading
import time
from typing import Any

from vinejax import main
from vinejax.core.accessories import contributed_class
from vinejax.engine import phase
from vinejax.engine.collect import Collector
from vinejax.learner import score, update
from vinejax.runtime import log, workdir
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.runtime.stopping import Watch


class Events:
    """The events of this process, in order."""

    def __init__(self, file: str, kill: str, fill: str):
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._at, delay, number = map(int, kill.split()) if kill else (0, 0, 0)
        self._delay_s, self._signal = delay / 1000, number
        fill_at, _, self._filler = fill.partition(" ")
        self._fill_at = int(fill_at or 0)
        self._lock = threading.Lock()
        self._number = 0
        self.stages: list[str] = []
        self.tokens = 0

    def happened(self, stage: str | None = None) -> None:
        """Notes an event, of the current stage unless another is given; maybe the last."""
        name = stage or (self.stages[-1] if self.stages else "between")
        with self._lock:
            self._number += 1
            os.write(self._file, f"{name} {self.tokens}\n".encode())
            if self._number == self._at:
                threading.Thread(target=self._die, daemon=True).start()
            if self._number == self._fill_at:
                fill(self._filler)

    def _die(self) -> None:
        time.sleep(self._delay_s)
        os.write(self._file, f"signal {time.time()}\n".encode())
        os.kill(os.getpid(), self._signal)


def fill(path: str) -> None:
    """Writes a file until there is no room for a byte more."""
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 16, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass


def watch(events: Events) -> None:
    """Replaces what an event happens in by the same with the event."""
    look, stage, count = Watch.look, log.RunLog.stage, Collector._count
    write = workdir.write_atomic

    class Noted(Watch):
        def look(self, result: Any = None) -> None:
            events.happened()
            look(self, result)

    def counted(self: Collector, *args: Any) -> Any:
        before = self._stats.decoded_tokens
        taken = count(self, *args)
        events.tokens += self._stats.decoded_tokens - before
        return taken

    class Stage:
        def __init__(self, log: log.RunLog, name: str):
            self._stage, self._name = stage(log, name), name

        def __enter__(self) -> None:
            events.stages.append(self._name)
            events.happened()
            self._stage.__enter__()

        def __exit__(self, *exception: Any) -> Any:
            events.stages.pop()
            return self._stage.__exit__(*exception)

    def before(name: str, function: Any) -> Any:
        def noted(*args: Any, **settings: Any) -> Any:
            events.happened(name)
            return function(*args, **settings)

        return noted

    def half_written(path: Any, content: str | bytes) -> None:
        path.with_name(path.name + ".0123abcd.tmp").write_bytes(b"{")
        events.happened("write")
        write(path, content)

    for module in (update, score, phase):
        module.Watch = Noted  # pyright: ignore
    Collector._count = counted  # pyright: ignore
    log.RunLog.stage = lambda self, name: Stage(self, name)  # pyright: ignore
    for name in ("save", "save_params"):  # a checkpoint, the best policy
        setattr(Checkpoints, name, before(name, getattr(Checkpoints, name)))
    if page := contributed_class("HOOKS", "page"):
        page.finish = before("report", page.finish)
    for module in (log, workdir):
        module.write_atomic = half_written  # pyright: ignore


if __name__ == "__main__":
    given = (os.environ.get(name, "") for name in ("FAULTS_KILL", "FAULTS_FILL"))
    watch(Events(os.environ["FAULTS_EVENTS"], *given))
    main.run()
