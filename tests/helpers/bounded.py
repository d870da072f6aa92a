"""A bound on work that a long or hostile input could make quadratic, or endless."""

import contextlib
import signal
import time
from collections.abc import Iterator

BOUND_S = 20.0  # of processor time: ten times and more what any of these takes on a busy machine


class TooSlow(AssertionError):
    """A call took longer than it may."""


@contextlib.contextmanager
def bounded(what: object = "this", bound_s: float = BOUND_S) -> Iterator[None]:
    """Raises TooSlow where the block takes more than `bound_s`, or does not end.

    The bound measures no speed. What it catches takes minutes, or for ever.
    """

    def stop(*_: object) -> None:
        raise TooSlow(f"{what} does not end")

    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 20 * bound_s)  # of wall-clock time: others compute too
    start = time.process_time()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    seconds = time.process_time() - start
    if seconds > bound_s:
        raise TooSlow(f"{what} took {seconds:.1f} s")
