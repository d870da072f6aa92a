"""Writes TensorBoard's events with `EventsWriter`, the file writer of tensorboardX.

tensorboardX's `SummaryWriter` writes events in a thread. On a full disk the thread dies, and a run
would wait forever for space in the thread's queue. With `EventsWriter` the run ends with an error
of one line. tensorboardX is imported only in a run, because it imports torch if torch is
installed, and the import of torch takes two seconds.
"""

import math
import os
import time
from collections.abc import Mapping

from etils import epath

from vinejax.runtime.workdir import is_remote

UPLOAD_S = 30  # minimum seconds between two uploads of the whole file to an object store


class Events:
    """A TensorBoard file of events in a folder."""

    def __init__(self, folder: epath.Path, purge: int | None, suffix: str):
        """Creates the file. Raises OSError if that fails.

        Args:
          folder: the folder, which is created if it does not exist.
          purge: a step. TensorBoard drops the events of earlier files from this step on. None: it
            drops no events.
          suffix: the end of the file's name, after the time in seconds.
        """
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore

        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(os.fspath(folder / "events"), suffix)
        self._every_s = UPLOAD_S if is_remote(folder) else 0.0
        self._flushed = -math.inf
        if purge is not None:
            start = SessionLog(status=SessionLog.START)
            self._writer.write_event(Event(wall_time=time.time(), step=purge, session_log=start))

    def add(self, values: Mapping[str, float], at: int) -> None:
        """Writes the finite values of step `at`. Raises OSError if the file cannot be written."""
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore
        from tensorboardX.summary import scalar

        for name, value in values.items():
            if math.isfinite(value):  # TensorBoard cannot draw other values
                summary = scalar(name, value)
                self._writer.write_event(Event(wall_time=time.time(), step=at, summary=summary))
        if time.monotonic() - self._flushed >= self._every_s:
            self._writer.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Writes the remaining events and closes the file. Raises OSError if writing fails."""
        self._writer.close()
