"""Tests the status of a run, from the file of its process and the lock of its workdir."""

import dataclasses
import errno
import json
import pathlib
import subprocess
import sys
import time

import pytest
from etils import epath

from vinejax.runtime import lock
from vinejax.runtime import status as of_run
from vinejax.runtime.lock import FILE, WorkdirLock, is_locked
from vinejax.runtime.status import Status, read_status, write_status

HOLDER = """
import sys, time
from etils import epath
from vinejax.runtime.lock import WorkdirLock
from vinejax.runtime.status import Status, write_status
workdir = epath.Path(sys.argv[1])
WorkdirLock(workdir).take()
write_status(workdir, Status("running", 7, 25, time.time(), 60.0))
print("taken", flush=True)
time.sleep(60)
"""


def status(**fields: object) -> Status:
    return dataclasses.replace(Status("running", 7, 25, time.time(), 60.0), **fields)


def test_a_status_is_read_as_it_was_written(tmp_path: pathlib.Path):
    workdir = epath.Path(tmp_path)
    assert read_status(workdir) is None
    for state in ("finished", "stopped", "failed"):
        written = status(state=state, why="stopped by SIGTERM")
        write_status(workdir, written)
        assert read_status(workdir) == written
    for damaged in ("", "[]", '{"state": "running"}', '{"state": 3, "more": 1}'):
        (tmp_path / of_run.FILE).write_text(damaged)
        assert read_status(workdir) is None


def test_a_killed_process_is_lost_though_it_said_nothing(tmp_path: pathlib.Path):
    workdir = epath.Path(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "taken\n"
        found = read_status(workdir)
        assert found is not None and (found.state, found.pid) == ("running", holder.pid)
        assert is_locked(workdir)
        holder.kill()
        holder.wait()
    found = read_status(workdir)
    assert found is not None and (found.state, found.done) == ("lost", 7)
    assert not is_locked(workdir)


def test_a_run_whose_lock_file_is_gone_is_lost(tmp_path: pathlib.Path):
    """As in a copy of a workdir without hidden files; the process of a run keeps the file open."""
    write_status(epath.Path(tmp_path), status())
    assert getattr(read_status(epath.Path(tmp_path)), "state", None) == "lost"


def test_a_process_that_dies_while_it_writes_leaves_the_status_before(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    written = status(state="stopped")
    write_status(epath.Path(tmp_path), written)
    monkeypatch.setattr(of_run, "write_atomic", die)
    with pytest.raises(KeyboardInterrupt):
        write_status(epath.Path(tmp_path), status())
    assert read_status(epath.Path(tmp_path)) == written


def test_a_run_of_another_host_is_lost_once_it_is_silent(tmp_path: pathlib.Path):
    """The lock of a run on another host may be invisible from here."""
    workdir = epath.Path(tmp_path)
    write_status(workdir, status(host="elsewhere"))
    assert getattr(read_status(workdir), "state", None) == "running"
    write_status(workdir, status(host="elsewhere", at=time.time() - 61))
    assert getattr(read_status(workdir), "state", None) == "lost"


def test_a_run_on_a_file_system_without_locks_is_lost_once_it_is_silent(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """Such as Lustre without `-o flock`; the page of a run that goes on said that it had died."""

    def without_locks(file: int, mode: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(lock.fcntl, "flock", without_locks)
    workdir = epath.Path(tmp_path)
    (tmp_path / FILE).write_text("")
    write_status(workdir, status())
    assert getattr(read_status(workdir), "state", None) == "running"
    write_status(workdir, status(at=time.time() - 61))
    assert getattr(read_status(workdir), "state", None) == "lost"


def test_looking_at_a_lock_refuses_nobody(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """A run that starts while another process reads the status gets the lock all the same."""
    import fcntl
    import os
    import threading

    workdir = epath.Path(tmp_path)
    (tmp_path / FILE).write_text("")
    assert not is_locked(workdir)
    looked = os.open(tmp_path / FILE, os.O_RDONLY)
    fcntl.flock(looked, fcntl.LOCK_SH)
    assert is_locked(workdir) is False  # two processes may look at once
    threading.Timer(0.01, os.close, [looked]).start()
    with WorkdirLock(workdir) as lock:
        lock.take()
        assert is_locked(workdir)
        assert "pid" in json.loads((tmp_path / FILE).read_text())
