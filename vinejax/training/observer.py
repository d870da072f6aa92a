"""What watches a run from outside its loop, such as the page that people read meanwhile."""

import contextlib
import os
from collections.abc import Callable

from etils import epath

from vinejax.core.accessories import contributed_class


class Observer(contextlib.AbstractContextManager["Observer"]):
    """Watches a run; a context manager around its loop. This one shows nothing.

    Where the loop ends with an exception, `__exit__` gets it.
    """

    def __init__(
        self,
        workdir: epath.Path,
        total: int,
        done: int,
        say: Callable[[str], None],
        is_writer: bool = True,
    ):
        """`total` and `done` count iterations; `say` prints a line. Only the writer writes."""
        self.done = done

    def __exit__(self, *_: object) -> None:
        """Takes note of the end of the loop."""

    def renew(self) -> None:
        """Called at the start, and when an iteration or an evaluation has ended."""

    def finish(self) -> os.PathLike[str] | None:
        """Called when the run has finished; returns the file that shows it, if there is one."""


def observer_class() -> type[Observer]:
    """The class that shows runs to people, if the tools are there."""
    return contributed_class("HOOKS", "page") or Observer
