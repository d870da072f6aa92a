"""Servers of configs/tiny_start, in this process or in another, for `vinejax/tools/serve`."""

import contextlib
import json
import pathlib
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

from helpers.paths import CONFIGS, REPO
from vinejax.config.load import from_dict, load, override
from vinejax.core.settings import Config
from vinejax.tools.serve.serve_mode import service_of

SLOTS = 8


def tiny_config(**fields: Any) -> Config:
    """configs/tiny.py with 8 slots, and with fields by names that have `__` for a dot."""
    values = load(str(CONFIGS / "tiny.py"))
    values.compile_cache = "none"
    overrides = {name.replace("__", "."): value for name, value in fields.items()}
    override(values, {"rollout.slots": SLOTS, "grader.workers": 1, **overrides})
    return from_dict(values)


@contextlib.contextmanager
def tiny_service(folder: pathlib.Path, **fields: Any) -> Iterator[Any]:
    """The service of `tiny_config`; `folder` is its workdir."""
    with service_of(tiny_config(**fields), folder) as service:
        yield service


class Server(NamedTuple):
    """A server in a process of its own, at a free port of this machine."""

    process: subprocess.Popen[str]
    url: str  # up to and with /v1

    def post(self, path: str, timeout: float = 120, **fields: Any) -> dict[str, Any]:
        """The reply to a request. Raises urllib's HTTPError for another status than 200."""
        request = urllib.request.Request(
            f"{self.url}/{path}",
            json.dumps(fields).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.loads(response.read())


@contextlib.contextmanager
def server_process(folder: pathlib.Path, *flags: str) -> Iterator[Server]:
    """`--mode=serve` with configs/tiny.py; it must say within two minutes that it serves."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vinejax.main", f"--config={CONFIGS / 'tiny.py'}"]
    command += ["--mode=serve", f"--workdir={folder}", f"--config.serve.port={port}"]
    command += [f"--config.rollout.slots={SLOTS}", *flags]
    process = subprocess.Popen(
        command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("serves "):
                break
        assert lines and lines[-1].startswith("serves "), "".join(lines)
        yield Server(process, f"http://127.0.0.1:{port}/v1")
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
