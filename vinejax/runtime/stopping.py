"""Handles requests to stop: a signal sets a flag that loops poll between chunks and minibatches.

A signal handler that raises an exception can interrupt any line, even in a library that ignores the
exception and leaves a partial result. So our handlers do nothing. Python writes the numbers of
signals to a pipe, and a thread reads them, even while the main thread is in a compiled program.
Within `deferred`, the thread sets the flag, `Watch.look` raises Stopped in the main thread, and the
run saves its state for the next start. Outside `deferred`, the thread ends the process at once.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from vinejax.runtime.watchdog import sign

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SHOW_CURSOR = b"\x1b[?25h"  # the bars of a run hide the cursor
AT_ONCE = "at once; the same command goes on from the newest checkpoint"


class Stopped(Exception):
    """Raised after a request to stop. `exit_code` is 128 + the signal number, as in a shell."""

    def __init__(self, number: int):
        """`number` is the number of the signal."""
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number
        self.next_start = ""  # a phrase that says where the next start goes on


class _Request:
    """The state of the module: the signal received, and whether a request to stop is deferred."""

    number = 0  # number of the first signal; 0: there was no signal
    is_interrupted = False  # whether SIGINT was among the signals
    is_deferred = False
    has_trained = False  # whether a context of `deferred` has been left
    is_listening = False


def listen() -> None:
    """Handles SIGTERM, SIGINT and SIGHUP, except those that this process was started to ignore.

    Must be called in the main thread, after libraries have set their own handlers. Another call
    only sets the handlers again.
    """
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _do_nothing)
    if _Request.is_listening:
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_detach)
    threading.Thread(target=_read, args=(read_end,), name="signals", daemon=True).start()
    _Request.is_listening = True


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """A context in which a request to stop waits for the next `Watch.look`, which raises Stopped.

    Even in this context, a second SIGINT (Ctrl-C) ends the process at once.
    """
    _Request.number, _Request.is_interrupted, _Request.is_deferred = 0, False, True
    try:
        yield
    finally:
        _Request.is_deferred, _Request.has_trained = False, True


def request(number: int) -> None:
    """Requests a stop, as the signal with this number does.

    The function ends the process outside `deferred`, and after a second SIGINT.
    """
    if not _Request.is_deferred:
        stage = "nothing of this stage is kept; the same command does it again"
        _leave(number, AT_ONCE if _Request.has_trained else stage)
        return
    _Request.number = _Request.number or number
    if number != signal.SIGINT:
        return
    if _Request.is_interrupted:
        _leave(number, AT_ONCE)
    _Request.is_interrupted = True
    _say("stops after this chunk or minibatch and saves; Ctrl-C again: at once")


class Watch:
    """Polls for a request to stop, once per step of a loop.

    If one of several hosts gets a request, all hosts stop at the same step, so all must make the
    same calls of `look`. Each call starts a program that computes the maximum of the hosts' signal
    numbers. The next call reads this maximum, so the devices never wait for the hosts.

    CPU devices run programs concurrently, which would mix up the collectives of several hosts. So
    on several hosts with CPU devices, a call with a `result` waits for the result and for the
    maximum of this call, and a call without a result does not poll.
    """

    def __init__(self):
        self._previous: Any = None

    def look(self, result: Any = None) -> None:
        """Raises Stopped after a request to stop. Records a heartbeat for the watchdog.

        `result` has an array of each program of the step that was just started. On one host, the
        call waits for the previous `result`, so the host is at most one step ahead of the devices.
        """
        import jax

        from vinejax.runtime.distributed import start_maximum

        sign()
        if not _Request.is_deferred:
            return
        previous, self._previous = self._previous, result
        if jax.process_count() == 1:
            if previous is not None:
                jax.block_until_ready(previous)
            number = _Request.number
        elif jax.default_backend() == "cpu":
            if result is None:
                return
            jax.block_until_ready(result)
            number = int(start_maximum(_Request.number))
        else:
            self._previous = start_maximum(_Request.number)
            number = 0 if previous is None else int(previous)
        if number:
            raise Stopped(number)


def _do_nothing(*_: object) -> None:
    """A signal handler that does nothing: Python itself writes the signal's number to a pipe."""


def _detach() -> None:
    """Detaches a forked process from the run: no signal to it reaches the run, SIGTERM ends it.

    A function of the user's may end its workers (multiprocessing), which must not stop the run.
    Ctrl-C reaches workers, too, and does nothing in them, because the run needs their results.
    """
    signal.set_wakeup_fd(-1)
    if signal.getsignal(signal.SIGTERM) is _do_nothing:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _read(pipe: int) -> None:
    while numbers := os.read(pipe, 64):
        for number in numbers:
            if number in SIGNALS:
                request(number)


def _leave(number: int, what: str) -> None:
    """Prints the signal `number` and `what`, and ends the process at once, without an exception."""
    if sys.stdout.isatty():
        os.write(1, SHOW_CURSOR)
    _say(f"stopped by {signal.Signals(number).name}; {what}")
    os._exit(128 + number)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be closed
        os.write(2, f"vinejax: {text}\n".encode())
