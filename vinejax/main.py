"""The command `vinejax`: prints at once that it starts, then runs `command.py`."""

import os
import signal
import sys


def run() -> None:
    """Imports and runs `command.run`; jax and the methods take seconds to import."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    if "" not in sys.path:  # modules of the current folder are found, as with `python -m`
        sys.path.insert(0, "")
    if sys.stdout.isatty() and not {"-h", "--help", "--version"} & set(sys.argv):
        print("vinejax starts: importing jax", flush=True)
    # The probe's small linear systems take NumPy milliseconds on one core. On busy cores OpenBLAS's
    # threads wait for one another, which took 35 s per iteration.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from vinejax import command

    command.run()


def _leave(*_: object) -> None:
    """Ends the process at Ctrl-C, until `runtime/stopping.py` handles signals.

    A KeyboardInterrupt could be raised within jax's callback of the garbage collector, where Python
    ignores it.
    """
    os.write(2, b"vinejax: interrupted; the same command does it again\n")
    os._exit(130)


if __name__ == "__main__":
    run()
