"""Tests the lock of a workdir: one process at a time has it, and no dead process does."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest
from etils import epath

from vinejax.core.errors import WorkdirError
from vinejax.runtime import lock as lock_module
from vinejax.runtime.lock import FILE, WorkdirLock

HOLDER = """
import sys, time
from etils import epath
from vinejax.runtime.lock import WorkdirLock
WorkdirLock(epath.Path(sys.argv[1])).take()
print("held", flush=True)
time.sleep(600)
"""


FORKING = """
import os, sys, time
from etils import epath
from vinejax.runtime.lock import WorkdirLock
WorkdirLock(epath.Path(sys.argv[1])).take()
if not os.fork():
    print(os.getpid(), flush=True)
time.sleep(600)
"""


def held(folder: pathlib.Path) -> WorkdirLock:
    lock = WorkdirLock(epath.Path(folder))
    lock.take()
    return lock


def refusal(folder: pathlib.Path) -> str:
    with pytest.raises(WorkdirError) as error:
        held(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_second_process_is_refused_and_a_dead_one_does_not_count(tmp_path: pathlib.Path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        who = f"process {first.pid} on host {socket.gethostname()} is training there"
        assert refusal(tmp_path / "run").startswith(f"{tmp_path}/run: {who}; ")
        first.send_signal(signal.SIGKILL)
    with held(tmp_path / "run"):
        record = json.loads((tmp_path / "run" / FILE).read_text())
        assert record == {"host": socket.gethostname(), "pid": os.getpid()}


def test_a_forked_process_does_not_hold_it_after_the_death_of_the_run(tmp_path: pathlib.Path):
    """Such as a worker of multiprocessing, whom a kill of the run leaves behind."""
    command = [sys.executable, "-c", FORKING, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        child = int(run.stdout.readline())
        try:
            refusal(tmp_path)
            run.kill()
            run.wait()
            held(tmp_path).release()
        finally:
            os.kill(child, signal.SIGKILL)


def next_descriptor() -> int:
    """The descriptor that the next file to be opened gets, which is the lowest free one."""
    file = os.open(os.devnull, os.O_RDONLY)
    os.close(file)
    return file


def test_it_is_held_once_and_released(tmp_path: pathlib.Path):
    with held(tmp_path) as lock:
        lock.take()
        free = next_descriptor()
        assert f"process {os.getpid()} on host" in refusal(tmp_path)
        assert next_descriptor() == free, "the refused one keeps no file open"
    held(tmp_path).release()


def test_a_second_release_closes_no_file_of_others(tmp_path: pathlib.Path):
    """Every process that is forked later releases it once more."""
    lock = held(tmp_path)
    lock.release()
    with (tmp_path / "file").open("w") as file:  # it may get the descriptor of the lock
        lock.release()
        file.write("text")
    assert (tmp_path / "file").read_text() == "text"


def test_a_holder_that_could_not_write_its_name(tmp_path: pathlib.Path):
    for text in ("", "{", "[1]", '{"pid": "x"}', "\0\0"):
        with held(tmp_path):
            (tmp_path / FILE).write_text(text)
            assert "another process is training there" in refusal(tmp_path)


def test_the_name_of_the_holder_replaces_a_longer_one(tmp_path: pathlib.Path):
    (tmp_path / FILE).write_text(json.dumps({"host": "a" * 99, "pid": 123456789}))
    with held(tmp_path):
        assert f"process {os.getpid()} on host {socket.gethostname()} is" in refusal(tmp_path)


def test_on_a_full_disk_the_lock_holds_without_a_name(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", fail)
    with held(tmp_path):
        assert "another process is training there" in refusal(tmp_path)


def test_a_folder_without_a_lock_file_is_left_as_it_is(tmp_path: pathlib.Path):
    for folder in (tmp_path / "absent", tmp_path):
        WorkdirLock(epath.Path(folder)).take(make=False)
    assert list(tmp_path.iterdir()) == []
    held(tmp_path).release()
    with WorkdirLock(epath.Path(tmp_path)) as lock:
        lock.take(make=False)
        refusal(tmp_path)


def test_other_hosts_and_object_stores_take_none(tmp_path: pathlib.Path):
    with held(tmp_path):
        WorkdirLock(epath.Path(tmp_path), is_wanted=False).take()
        WorkdirLock(epath.Path("gs://bucket/run")).take()


def test_what_cannot_be_locked(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").write_text("")
    (tmp_path / "run" / FILE).mkdir(parents=True)
    for folder in (tmp_path / "file", tmp_path / "run"):
        assert "cannot be used" in refusal(folder)

    def fail(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(lock_module.fcntl, "flock", fail)
    held(tmp_path)
    assert capsys.readouterr().err.count("has no locks") == 1
