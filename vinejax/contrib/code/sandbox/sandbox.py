"""The sandbox that tasks use, which runs jobs in one of four ways."""

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from vinejax.contrib.code.sandbox.outside import Command, Service
from vinejax.contrib.code.sandbox.pool import Outcome, Pool, SandboxRefusal
from vinejax.contrib.code.sandbox.probes import first_success
from vinejax.contrib.code.settings import CodeConfig
from vinejax.core.errors import ConfigError

A = TypeVar("A")
B = TypeVar("B")
FILE_BYTES = 4 * 2**20  # largest size of a file that a program writes, such as its output
# Stack of the main thread. Every Linux leaves at least this room below it.
STACK_BYTES = 120 * 2**20
REMEDY = (
    "choose code.sandbox='command' with code.command (bwrap, nsjail, docker or runsc and its "
    "interpreter), 'http' with code.url, or, for code that you trust, 'none'"
)


class Sandbox(contextlib.AbstractContextManager["Sandbox"]):
    """A context manager that runs programs, `workers` at a time. Several threads may use it.

    `timeout_s` limits the wall-clock time of a program, and `memory_mb` its address space. The
    first program starts the first process.

    Example:
      >>> with Sandbox(CodeConfig(), workers=1) as sandbox:
      ...     sandbox.run("print(int(input()) + 1)", "41").out
      '42\\n'
    """

    def __init__(
        self, cfg: CodeConfig, workers: int, timeout_s: float = 5.0, memory_mb: int = 2048
    ):
        self.kind, self.workers = cfg.sandbox, workers
        self.timeout_s, self.memory_mb = timeout_s, memory_mb
        if self.kind == "kernel":
            self._way = Pool(workers)
        elif self.kind == "http":
            self._way = Service(cfg.url, memory_mb)
        else:
            self._way = Command(cfg.command or (sys.executable,))
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="sandbox")

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for the programs that are running, and ends all processes."""
        self._threads.shutdown(cancel_futures=True)
        self._way.close()

    def run(
        self, source: str, stdin: str = "", calls: Sequence[tuple[str, Any]] | None = None
    ) -> Outcome:
        """The outcome of a program with this standard input.

        `calls` are pairs (function, arguments encoded by `runner.encode`). With calls the program
        runs as a module, and `out` has a line of JSON per call. Raises ConfigError if the sandbox
        does not work on this machine.
        """
        limits = {
            "RLIMIT_AS": self.memory_mb * 2**20,
            "RLIMIT_CPU": math.ceil(self.timeout_s) + 1,
            "RLIMIT_FSIZE": FILE_BYTES,
            "RLIMIT_NOFILE": 64,
            "RLIMIT_CORE": 0,
            "RLIMIT_STACK": STACK_BYTES,
        }
        # The end of a command such as `docker run` does not end the program in its container.
        alarm_s = self.timeout_s + 1 if self.kind == "command" else None
        job = {"source": source, "limits": limits, "calls": calls, "alarm_s": alarm_s}
        data = json.dumps(job).encode()
        message = b"%010d" % len(data) + data + stdin.encode("utf-8", "replace")
        try:
            return self._way.run(message, self.timeout_s)
        except SandboxRefusal as reason:
            raise self._refused(f"cannot be used here: {reason}") from None

    def run_all(self, function: Callable[[A], B], items: Iterable[A]) -> list[B]:
        """The results of `function` for all items, in order, from `workers` threads."""
        return list(self._threads.map(function, items))

    def check(self) -> None:
        """Raises ConfigError if a probe does harm or a harmless program does not run.

        The sandbox 'none' is not probed.
        """
        if self.kind == "none":
            return
        if found := first_success(self.run, self.memory_mb, is_kernel=self.kind == "kernel"):
            raise self._refused(found)

    def _refused(self, reason: str) -> ConfigError:
        needs = "; it needs Linux 5.13 with Landlock" if self.kind == "kernel" else ""
        return ConfigError("code.sandbox", f"{reason}{needs}; {REMEDY}", repr(self.kind))
