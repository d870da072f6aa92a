"""The pool's side of one worker process: start it, talk to it over its pipes, end it."""

import json
import os
import subprocess
import sys
import time
from typing import Any

from vinejax.grading.pool.environment import child_environment
from vinejax.grading.pool.jobs import Job

MODULE = "vinejax.grading.pool.worker"
STARTUP_S = 120.0  # limit for importing sympy on a busy machine


class WorkerProcess:
    """A worker process of the pool.

    It runs `python -m` and is not forked, so that the caller's script needs no `__main__` guard and
    no memory is copied. `job` is the current job. `deadline`, in the time of `time.monotonic`, is
    when this job, or the start of the worker, must be over. `fileno` lets a selector wait for the
    worker.
    """

    def __init__(self, settings: dict[str, Any]):
        self.process = subprocess.Popen(
            # -P: a sympy.py in the user's folder is not sympy.
            [sys.executable, "-P", "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
            # Signals to the run's process group must not end workers: the run needs their verdicts.
            start_new_session=True,
        )
        assert self.process.stdin and self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        os.set_blocking(self.stdout.fileno(), False)
        self.ready = False
        self.job: Job | None = None
        self.deadline = time.monotonic() + STARTUP_S
        self.graded = 0
        self._received = b""
        self._write(settings)

    def fileno(self) -> int:
        return self.stdout.fileno()

    def give(self, job: Job, timeout_s: float) -> None:
        """Sends a job; its time limit begins now, because an idle worker reads at once."""
        kind, prediction, gold = self.job = job
        self.deadline = time.monotonic() + timeout_s
        self._write({"kind": kind, "prediction": prediction, "gold": gold})

    def _write(self, message: dict[str, Any]) -> None:
        # Lone surrogates, which a model can write, are kept as they are; json.loads takes them.
        data = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
        try:
            self.stdin.write(data + b"\n")
            self.stdin.flush()
        except BrokenPipeError:
            pass  # the worker is dead; the next `receive` raises EOFError

    def receive(self) -> dict[str, Any] | None:
        """The worker's reply; None while it is incomplete. Raises EOFError if the worker ended."""
        data = self.stdout.read()
        if data == b"":
            raise EOFError
        self._received += data or b""
        line, end, rest = self._received.partition(b"\n")
        if not end:
            return None
        self._received = rest
        return json.loads(line)

    def terminate(self) -> None:
        self.process.terminate()

    def ended(self) -> bool:
        return self.process.poll() is not None

    def finish(self, grace_s: float) -> None:
        """Waits up to `grace_s` after `terminate`, then kills the process, and closes its pipes."""
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.stdout.close()
        try:
            self.stdin.close()
        except BrokenPipeError:
            pass  # something was left unsent in its buffer
