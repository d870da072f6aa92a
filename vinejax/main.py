"""The command `vinejax`: prints at once that it starts, then runs `command.py`."""

import os
import sys


def run() -> None:
    """Imports and runs `command.run`; jax and the methods take seconds to import."""
    if "" not in sys.path:  # modules of the current folder are found, as with `python -m`
        sys.path.insert(0, "")
    if sys.stdout.isatty() and not {"-h", "--help", "--version"} & set(sys.argv):
        print("vinejax starts: importing jax", flush=True)
    # The probe's small linear systems take NumPy milliseconds on one core. On busy cores OpenBLAS's
    # threads wait for one another, which took 35 s per iteration.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from vinejax import command
    except KeyboardInterrupt:
        print("vinejax: interrupted; the same command does it again", file=sys.stderr)
        sys.exit(130)
    command.run()


if __name__ == "__main__":
    run()
