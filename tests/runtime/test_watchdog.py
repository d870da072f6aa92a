"""Tests the watchdog: it reports silence and the process that is behind, and disturbs no work."""

import dataclasses
import errno
import json
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from etils import epath

from vinejax.runtime import watchdog as module
from vinejax.runtime.watchdog import Signs, Watchdog, sign

SILENCE_S = 0.2


@pytest.fixture(autouse=True)
def own_signs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "OWN_SIGNS", Signs("a", "start", 0))


def wait_for(capfd: pytest.CaptureFixture[str], text: str, count: int) -> str:
    """The content of standard error, once it has the text `count` times."""
    found = ""
    deadline = time.monotonic() + 30
    while found.count(text) < count and time.monotonic() < deadline:
        time.sleep(0.01)
        found += capfd.readouterr().err
    return found


def test_silence_is_said_and_said_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    line, after = Watchdog.line, []
    monkeypatch.setattr(Watchdog, "line", lambda self, s: after.append(s) or line(self, s))
    with Watchdog(epath.Path(tmp_path), SILENCE_S):
        sign("value")
        sign()
        found = wait_for(capfd, "vinejax: warning: no sign of life for ", 2)
    for part in found.split("vinejax: warning: no sign of life for ")[1:]:
        assert "in stage 'value'" in part.splitlines()[0]
    assert after[:2] == pytest.approx([SILENCE_S, 2 * SILENCE_S])
    assert list(tmp_path.iterdir()) == []


def test_silence_shows_where_each_thread_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with Watchdog(epath.Path(tmp_path), SILENCE_S):
        # Each in a dump of its own: what is written while `capfd` is read can be lost.
        for text in ("Timeout (0:00:00.2", "in _watch", "in test_silence_shows_where"):
            assert text in wait_for(capfd, text, 1)
    assert all(thread.name != "watchdog" for thread in threading.enumerate())
    capfd.readouterr()
    time.sleep(3 * SILENCE_S)
    assert "Timeout" not in capfd.readouterr().err  # it ends with the watchdog


def test_signs_keep_it_quiet(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with Watchdog(epath.Path(tmp_path), 2.0):
        end = time.monotonic() + 3
        while time.monotonic() < end:
            sign()
            time.sleep(0.01)
    assert capfd.readouterr().err == ""


def seen_by(tmp_path: Path, *others: Signs) -> str:
    """The line of process 0, which runs beside processes with the signs `others`."""
    sign("value")
    (tmp_path / "alive").mkdir()
    for process, one in enumerate(others, start=1):
        (tmp_path / "alive" / f"{process}.json").write_text(json.dumps(dataclasses.asdict(one)))
    watchdog = Watchdog(epath.Path(tmp_path), 60, process=0, processes=3)
    watchdog._write()
    return watchdog.line(61.4)


def test_the_process_that_is_behind_is_named(tmp_path: Path):
    line = seen_by(tmp_path, Signs("b", "value", 1), Signs("c", "rollout", 0))
    assert line == (
        "no sign of life for 61 s in stage 'value'; "
        "behind the others: process 2 on host c, in stage 'rollout'"
    )


def test_nobody_is_behind(tmp_path: Path):
    line = seen_by(tmp_path, Signs("b", "value", 1), Signs("c", "value", 1))
    assert line.endswith("all processes are as far: devices or the network between them hang")


def test_a_process_that_never_came(tmp_path: Path):
    assert seen_by(tmp_path, Signs("b", "value", 1)).endswith("ever heard of process 2")


def test_the_file_of_an_earlier_start_is_replaced_at_once(tmp_path: Path):
    """Else a process that hangs before its first poll would count as ahead of all others."""
    file = tmp_path / "alive" / "0.json"
    file.parent.mkdir()
    file.write_text(json.dumps(dataclasses.asdict(Signs("a", "train", 9000))))
    with Watchdog(epath.Path(tmp_path), 600, process=0, processes=2):
        assert json.loads(file.read_text()) == {"host": "a", "stage": "start", "count": 0}


def test_a_damaged_file_is_as_none(tmp_path: Path):
    (tmp_path / "alive").mkdir()
    (tmp_path / "alive" / "0.json").write_text("[]")
    (tmp_path / "alive" / "1.json").write_text('{"host": "b"}')
    watchdog = Watchdog(epath.Path(tmp_path), 60, process=0, processes=2)
    assert watchdog.line(60.0).endswith("ever heard of process 0, 1")


def test_every_poll_writes_the_heartbeat_also_after_the_terminal_was_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """Otherwise other hosts would name this one as behind for the rest of the run."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sys, "stderr", types.SimpleNamespace(write=fail, flush=fail))
    with Watchdog(epath.Path(tmp_path), SILENCE_S, process=0, processes=2):
        wait_for(capfd, "Timeout", 2)  # faulthandler's; the warning comes before the second one
        sign("value")
        deadline = time.monotonic() + 30
        found = ""
        while "value" not in found and time.monotonic() < deadline:
            time.sleep(0.01)
            found = (tmp_path / "alive" / "0.json").read_text()
    assert json.loads(found) == {"host": "a", "stage": "value", "count": 1}


def test_an_object_store_that_does_not_answer_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """Its library has errors that are no OSError, such as gcsfs's HttpError."""

    class HttpError(Exception):
        pass

    def fail(*_: object, **__: object) -> None:
        raise HttpError("503, unavailable")

    monkeypatch.setattr(module, "write_atomic", fail)
    monkeypatch.setattr(epath.Path(tmp_path).__class__, "read_text", fail)
    with Watchdog(epath.Path(tmp_path), SILENCE_S, process=0, processes=2):
        found = wait_for(capfd, "nothing was ever heard of process 0, 1", 1)
    assert "vinejax: warning: no sign of life" in found and "HttpError" not in found
