"""Writes and reads `status.json`, the status of a run, which the run renews after iterations.

A process that is killed cannot write that the run has ended. A reader recognises such a run,
because the lock of the workdir is free or the last status is too old.
"""

import dataclasses
import json
import os
import socket
import time
from typing import Any, Literal

from etils import epath

from vinejax.runtime.lock import is_locked
from vinejax.runtime.workdir import write_atomic

FILE = "status.json"  # in the workdir
State = Literal["running", "finished", "stopped", "failed", "lost"]


@dataclasses.dataclass(frozen=True)
class Status:
    """The status of a run. The state 'lost' is never written; `read_status` may return it."""

    state: State
    done: int  # finished iterations
    total: int  # iterations that the configuration asks for
    at: float  # time of writing, in seconds since 1970
    patience_s: float = 0.0  # seconds within which a running process renews the status
    why: str = ""  # reason why the run stopped or failed
    host: str = dataclasses.field(default_factory=socket.gethostname)
    pid: int = dataclasses.field(default_factory=os.getpid)


def write_status(workdir: epath.Path, status: Status) -> None:
    write_atomic(workdir / FILE, json.dumps(dataclasses.asdict(status)) + "\n")


def read_status(workdir: epath.Path) -> Status | None:
    """The status of the run in a workdir; None if the file is missing or damaged.

    If the last state is 'running' but no process has the lock of the workdir, the run's process has
    died, and the result's state is 'lost'. The lock of a process on another host, of a remote
    workdir, or on a file system without locks cannot be seen. The state of such a run is 'lost' if
    its last status is older than the `patience_s` seconds that this status gives.
    """
    try:
        record: dict[str, Any] = json.loads((workdir / FILE).read_text(encoding="utf-8"))
        status = Status(**record)
        is_silent = time.time() - status.at > status.patience_s
    except (OSError, ValueError, TypeError):
        return None
    if status.state != "running" or (has_lock := is_locked(workdir)):
        return status
    is_seen = status.host == socket.gethostname() and has_lock is not None
    return dataclasses.replace(status, state="lost") if is_seen or is_silent else status
