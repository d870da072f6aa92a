"""How a run stands: `status.json`, which its process writes as iterations end, and when it ends.

A process that is killed writes nothing. Whoever reads the file sees it all the same: the lock of
the workdir is free, or the last sign is too old.
"""

import dataclasses
import json
import os
import socket
import time
from typing import Any, Literal

from etils import epath

from vinejax.runtime.lock import is_locked
from vinejax.runtime.workdir import is_remote, write_atomic

FILE = "status.json"  # of the workdir
State = Literal["running", "finished", "stopped", "failed", "lost"]


@dataclasses.dataclass(frozen=True)
class Status:
    """What is known of a run. `lost` is never written: see `read_status`."""

    state: State
    done: int  # iterations
    total: int  # iterations, those of the configuration
    at: float  # when it was written, in seconds since 1970
    patience_s: float = 0.0  # of a running one: seconds after which it should have been renewed
    why: str = ""  # it stopped or failed
    host: str = dataclasses.field(default_factory=socket.gethostname)
    pid: int = dataclasses.field(default_factory=os.getpid)


def write_status(workdir: epath.Path, status: Status) -> None:
    write_atomic(workdir / FILE, json.dumps(dataclasses.asdict(status)) + "\n")


def read_status(workdir: epath.Path) -> Status | None:
    """How the run in a workdir stands; None if no process has written it, or the file is damaged.

    A run whose last status is 'running' is `lost` if no process has the lock of the workdir. The
    processes of another host, and those that train in a remote workdir, may hold a lock that cannot
    be seen from here: they are lost once they have been silent for `patience_s` seconds.
    """
    try:
        record: dict[str, Any] = json.loads((workdir / FILE).read_text(encoding="utf-8"))
        status = Status(**record)
        is_silent = time.time() - status.at > status.patience_s
    except (OSError, ValueError, TypeError):
        return None
    if status.state != "running" or is_locked(workdir):
        return status
    is_here = status.host == socket.gethostname() and not is_remote(workdir)
    return dataclasses.replace(status, state="lost") if is_here or is_silent else status
