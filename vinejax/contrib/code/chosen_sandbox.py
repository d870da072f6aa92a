"""The sandbox of a task that runs programs, made from the settings of a run."""

import threading

from vinejax.contrib.code.sandbox.sandbox import Sandbox
from vinejax.contrib.code.settings import CodeConfig
from vinejax.core.settings import GraderConfig
from vinejax.tasks.graded import default_workers


class CodeSandbox:
    """A sandbox that is made at the first use. Several threads may use it."""

    def __init__(self) -> None:
        self.code, self.limits = CodeConfig(), GraderConfig()
        self._made: Sandbox | None = None
        self._lock = threading.Lock()

    def configure(self, code: CodeConfig, limits: GraderConfig) -> None:
        """Takes the settings of a run. Raises ConfigError if the sandbox fails a probe."""
        self.code, self.limits = code, limits
        self.get().check()

    def get(self) -> Sandbox:
        """The sandbox, with the settings at the time of the first call."""
        limits = self.limits
        with self._lock:
            if self._made is None:
                workers = limits.workers or default_workers()
                self._made = Sandbox(self.code, workers, limits.timeout_s, limits.memory_mb)
            return self._made
