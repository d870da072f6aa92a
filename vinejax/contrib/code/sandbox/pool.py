"""A pool of processes that run `child.py` and fork a confined process per solution.

A message has a job for `runner.py` and the text that the solution reads as its own input.
"""

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any, NamedTuple

from vinejax.contrib.code.sandbox.runner import HEADER

CHILD = Path(__file__).with_name("child.py")
START_S = 60.0  # time limit of a child's start; long, because the machine may be busy
SLACK_S = 10.0  # time that a child may take beyond the limit of a solution


class Outcome(NamedTuple):
    """The status of a program that ran, its output, the end of its error output, its CPU time."""

    status: str  # 'ok', 'timeout', 'threads', 'flood', 'exit N'; 'lost': the sandbox itself failed
    out: str
    err: str
    seconds: float | None = None  # CPU time; None: only the sandbox of the kernel measures it


class SandboxRefusal(Exception):
    """The sandbox cannot run on this machine; the message says why."""


class Child:
    """A process that runs `child.py` and gets messages from this process by pipes."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-s", "-S", "-B", str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PYTHONHASHSEED": "0"},
            cwd="/",
            start_new_session=True,
        )
        weakref.finalize(self, _end, self._process)
        try:
            answer = self._answer(START_S)
        except (EOFError, TimeoutError):
            self.end()
            raise SandboxRefusal("its process did not start") from None
        if "fatal" in answer:
            self.end()
            raise SandboxRefusal(answer["fatal"])

    def run(self, message: bytes, limit_s: float) -> Outcome:
        """The outcome of a message's job. Raises EOFError or TimeoutError if the child fails."""
        assert self._process.stdin
        try:
            self._process.stdin.write(b"%010d%010d" % (1000 * limit_s, len(message)) + message)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EOFError from None
        return Outcome(**self._answer(limit_s + SLACK_S))

    def _answer(self, limit_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        return json.loads(self._read(int(self._read(HEADER, deadline)), deadline))

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._process.stdout
        pipe, parts = self._process.stdout.fileno(), b""
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while len(parts) < size:
            if not poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
                raise TimeoutError
            part = os.read(pipe, size - len(parts))
            if not part:
                raise EOFError
            parts += part
        return parts

    def end(self) -> None:
        """Kills the process and any solution that it forked."""
        _end(self._process)


def _end(process: subprocess.Popen) -> None:
    """Kills a process and its session, and closes its pipes. A second call does nothing."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Pool:
    """At most `size` children, started when needed. Up to `size` calls of `run` work at once."""

    def __init__(self, size: int):
        self._idle: queue.LifoQueue[Child | None] = queue.LifoQueue()
        self._size = size
        for _ in range(size):
            self._idle.put(None)

    def run(self, message: bytes, limit_s: float) -> Outcome:
        """The outcome of the job in a message, which an idle child runs.

        Raises SandboxRefusal if no child starts.
        """
        child = self._idle.get()
        try:
            child = child or Child()
            return child.run(message, limit_s)
        except BaseException as error:
            if child:
                child.end()
            child = None
            if not isinstance(error, EOFError | TimeoutError):
                raise
            return Outcome("lost", "", "the sandbox's own process ended")
        finally:
            self._idle.put(child)

    def close(self) -> None:
        """Waits until all children are idle, and ends them."""
        for child in [self._idle.get() for _ in range(self._size)]:
            if child:
                child.end()
            self._idle.put(None)
