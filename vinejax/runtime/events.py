"""TensorBoard's events, written when they come.

tensorboardX's own `SummaryWriter` writes in a thread, where a full disk ends in tracebacks beside
the one line that a run ends with; its classes that do the writing are used here without the thread.
"""

import math
import os
import time
from collections.abc import Mapping

from etils import epath
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore
from tensorboardX.record_writer import directory_check
from tensorboardX.summary import scalar

from vinejax.runtime.workdir import is_remote

UPLOAD_S = 30  # between two uploads to an object store, each of the whole file


class Events:
    """A file of events in a folder."""

    def __init__(self, folder: epath.Path, purge: int | None, suffix: str):
        """Makes the file. Raises OSError.

        Args:
          folder: made if it is absent.
          purge: the step from which on TensorBoard forgets the events of earlier files; None: none.
          suffix: of the file's name, which has the second too.
        """
        directory_check(os.fspath(folder))
        self._writer = EventsWriter(os.fspath(folder / "events"), suffix)
        self._every_s = UPLOAD_S if is_remote(folder) else 0.0
        self._flushed = -math.inf
        if purge is not None:
            self._write(Event(step=purge, file_version="brain.Event:2"))
            self._write(Event(step=purge, session_log=SessionLog(status=SessionLog.START)))

    def add(self, values: Mapping[str, float], at: int) -> None:
        """Writes the values at a step, those excepted that are not finite. Raises OSError."""
        for name, value in values.items():
            if math.isfinite(value):  # TensorBoard draws no others
                self._write(Event(step=at, summary=scalar(name, value)))
        if time.monotonic() - self._flushed >= self._every_s:
            self._writer.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Writes what is left. Raises OSError."""
        self._writer.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._writer.write_event(event)
