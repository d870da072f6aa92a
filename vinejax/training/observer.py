"""The base of classes that watch a run, such as the page that shows it to people."""

import contextlib
import os
from collections.abc import Callable

from etils import epath

from vinejax.core.accessories import contributed_class


class Observer(contextlib.AbstractContextManager["Observer"]):
    """A context manager that watches the loop of a run. This base class shows nothing.

    `__exit__` gets the exception with which the loop ends, if there is one.
    """

    def __init__(
        self,
        workdir: epath.Path,
        total: int,
        done: int,
        say: Callable[[str], None],
        is_writer: bool = True,
    ):
        """`total` and `done` count iterations, and `say` prints a line.

        Without `is_writer`, nothing is written; only the first host is the writer.
        """
        self.done = done

    def __exit__(self, *_: object) -> None:
        """Called when the loop has ended; this class does nothing."""

    def renew(self) -> None:
        """Called at the start, and when an iteration or an evaluation has ended."""

    def finish(self) -> os.PathLike[str] | None:
        """Called when the run has finished; returns a file that shows the run, or None."""


def observer_class() -> type[Observer]:
    """The class that shows runs to people; `Observer` if `vinejax.tools` is not installed."""
    return contributed_class("HOOKS", "page") or Observer
