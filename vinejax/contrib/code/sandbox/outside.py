"""Sandboxes that other software provides: a command that starts an interpreter, or a service.

Both run the text of `runner.py` as a program. It reads a message from its standard input: a job,
which is the solution with its limits, and the text that the solution reads as its own input.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from vinejax.contrib.code.sandbox.pool import Outcome, SandboxRefusal
from vinejax.core.errors import ConfigError

PROGRAM = Path(__file__).with_name("runner.py").read_text(encoding="utf-8")
OUTPUT = 4 * 2**20  # largest number of bytes of standard output and error together
# Pauses before the second and later attempts at a request: a service may restart meanwhile.
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
FIRST_ATTEMPTS = 3  # attempts while the service has answered nothing yet: its address may be wrong
SLACK_S = 30.0  # time that an answer may take beyond the limit of the program


class Command:
    """Runs each message by a command, such as 'bwrap ... python3', that ends in an interpreter."""

    def __init__(self, command: Sequence[str]):
        self._command = [*command, "-s", "-S", "-B", "-c", PROGRAM]

    def run(self, message: bytes, limit_s: float) -> Outcome:
        """The outcome of a message's job. At the end all processes of the command are killed."""
        with tempfile.TemporaryFile() as stdin:
            stdin.write(message)
            stdin.seek(0)
            try:
                process = subprocess.Popen(
                    self._command,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={"PYTHONHASHSEED": "0", "PATH": os.environ.get("PATH", os.defpath)},
                    start_new_session=True,
                )
            except OSError as error:
                raise SandboxRefusal(f"{self._command[0]}: {error.strerror}") from None
            with process:
                try:
                    return _output_until(process, time.monotonic() + limit_s)
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Does nothing, because nothing is kept between messages."""


def _output_until(process: subprocess.Popen, deadline: float) -> Outcome:
    """The outcome of a process, once it has ended, timed out or written too much."""
    texts = {process.stdout: b"", process.stderr: b""}
    status = ""
    with selectors.DefaultSelector() as selector:
        for pipe in texts:
            assert pipe
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map() and not status:
            events = selector.select(max(0.0, deadline - time.monotonic()))
            status = "" if events else "timeout"
            for key, _ in events:
                part = os.read(key.fd, 2**16)
                texts[key.fileobj] += part  # pyright: ignore[reportArgumentType]
                if not part:
                    selector.unregister(key.fileobj)
            if sum(map(len, texts.values())) > OUTPUT:
                status = "flood"
    if not status:
        try:
            code = process.wait(max(0.0, deadline - time.monotonic()))
            status = f"exit {code}" if code else "ok"
        except subprocess.TimeoutExpired:
            status = "timeout"
    out, err = (text.decode("utf-8", "replace") for text in texts.values())
    return Outcome(status, out, err[-2000:])


class Service:
    """Sends each message to a service with the interface of SandboxFusion's `/run_code`."""

    def __init__(self, url: str, memory_mb: int):
        self._url, self._memory_mb = url, memory_mb
        self._has_answered = False

    def run(self, message: bytes, limit_s: float) -> Outcome:
        """The outcome of the job in a message.

        A request without a usable answer is repeated for about a minute, or three seconds while
        the service has answered nothing yet. Raises ConfigError if there is none then.
        """
        payload = {
            "code": PROGRAM,
            "language": "python",
            "stdin": message.decode("utf-8"),
            "run_timeout": limit_s,
            "memory_limit_MB": self._memory_mb,
        }
        request = urllib.request.Request(
            self._url, json.dumps(payload).encode(), {"Content-Type": "application/json"}
        )
        pauses = (0.0, *PAUSES_S) if self._has_answered else (0.0, *PAUSES_S)[:FIRST_ATTEMPTS]
        reason = ""
        for pause in pauses:
            time.sleep(pause)
            try:
                with urllib.request.urlopen(request, timeout=limit_s + SLACK_S) as answer:
                    outcome = _outcome(json.loads(answer.read(16 * OUTPUT)))
            except (OSError, ValueError, KeyError, TypeError) as error:
                reason = f"{type(error).__name__}: {error}"
            else:
                self._has_answered = True
                return outcome
        notice = f"no answer of SandboxFusion's form after {len(pauses)} requests ({reason:.200})"
        raise ConfigError("code.url", notice, repr(self._url))

    def close(self) -> None:
        """Does nothing, because nothing is kept between messages."""


def _outcome(answer: dict) -> Outcome:
    result = answer["run_result"]
    if result is None:
        raise ValueError(answer.get("message") or "no run_result")
    code = result.get("return_code")
    status = {"Finished": "ok", "TimeLimitExceeded": "timeout"}.get(result["status"], "lost")
    if status == "ok" and code:
        status = f"exit {code}"
    return Outcome(status, result.get("stdout") or "", (result.get("stderr") or "")[-2000:])
