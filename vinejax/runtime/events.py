"""Writes TensorBoard's events with the file writer inside tensorboardX's `SummaryWriter`.

`SummaryWriter` itself hands events to a thread. On a full disk that thread dies with a traceback,
and a run would wait forever to put its eleventh event into the thread's queue. With the file writer
the run ends with one line. Only a run imports tensorboardX, because that imports torch, if it is
installed, which takes two seconds.
"""

import math
import os
import time
from collections.abc import Mapping

from etils import epath

from vinejax.runtime.workdir import is_remote

UPLOAD_S = 30  # seconds between two uploads to an object store, each of the whole file


class Events:
    """A file of events in a folder."""

    def __init__(self, folder: epath.Path, purge: int | None, suffix: str):
        """Makes the file. Raises OSError.

        Args:
          folder: made if it is absent.
          purge: the first step whose events in earlier files TensorBoard drops; None: no step.
          suffix: of the file's name, after the time in seconds.
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
        """Writes the values at a step, except those that are not finite. Raises OSError."""
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
        """Writes what is left. Raises OSError."""
        self._writer.close()
