"""A clock with a fixed time for chat templates, so that the prompts of a run never change.

Otherwise, a template that inserts the date would change the prompts at midnight and on resuming.
"""

import datetime

from etils import epath

from vinejax.core.errors import WorkdirError
from vinejax.runtime.distributed import exchange, is_writer
from vinejax.runtime.workdir import write_atomic

FILE = "prompt_time"  # in the workdir of a run whose template has asked for the time


class Clock:
    """Gives a fixed time: the time that `pin` has set, or else the time of the first prompt."""

    def __init__(self):
        self._time: datetime.datetime | None = None
        self.was_asked = False

    def note_asked(self) -> None:
        """Notes that a template has asked for the time. The first call prints a warning."""
        if not self.was_asked and is_writer():
            message = "all prompts of the run have that of its start"
            print(
                f"warning: the chat template asks for the time; {message}, {self.time:%Y-%m-%d %X}"
            )
        self.was_asked = True

    @property
    def time(self) -> datetime.datetime:
        """The fixed time. If none is set yet, the first access sets it to the current time."""
        if self._time is None:
            self._time = datetime.datetime.now()
        return self._time

    def pin(self, workdir: epath.Path) -> None:
        """Sets the time to that recorded in the workdir or, without a record, to the current time.

        All hosts call `pin` and get the time of the first host. Raises WorkdirError if the record
        is damaged.
        """
        file = workdir / FILE
        now = datetime.datetime.now().isoformat()
        text = exchange(file.read_text() if file.exists() else now)[0]
        try:
            self._time = datetime.datetime.fromisoformat(text.strip())
        except ValueError:
            message = "holds no time; put a copy of it back, or choose another --workdir"
            raise WorkdirError(f"{file}: {message}") from None
        self.was_asked = False

    def keep(self, workdir: epath.Path) -> None:
        """Records the time in the workdir, if a template has asked for it."""
        if self.was_asked and not (workdir / FILE).exists():
            write_atomic(workdir / FILE, self.time.isoformat() + "\n")


CLOCK = Clock()  # one clock per process, because a process works on one run only
