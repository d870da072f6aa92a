"""The watchdog: silence is said, with the process that is behind; work is not disturbed."""

import json
import time
from pathlib import Path

import pytest
from etils import epath

from vinejax.runtime import signs
from vinejax.runtime.watchdog import Seen, Watchdog

SILENCE_S = 0.2


@pytest.fixture(autouse=True)
def own_signs(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"stage": "", "count": 0, "at": time.monotonic()}.items():
        monkeypatch.setattr(signs.LAST, name, value)


def wait_for_lines(capsys: pytest.CaptureFixture[str], count: int) -> list[str]:
    lines: list[str] = []
    deadline = time.monotonic() + 30
    while len(lines) < count and time.monotonic() < deadline:
        time.sleep(0.01)
        lines += capsys.readouterr().err.splitlines()
    return lines


def test_silence_is_said_and_said_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with Watchdog(epath.Path(tmp_path), SILENCE_S):
        signs.sign("value")
        first, second = wait_for_lines(capsys, 2)[:2]
    for line in (first, second):
        assert line.startswith("vinejax: warning: no sign of life for ")
        assert "in stage 'value'" in line
    assert list(tmp_path.iterdir()) == []


def test_signs_keep_it_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with Watchdog(epath.Path(tmp_path), 2.0):
        end = time.monotonic() + 3
        while time.monotonic() < end:
            signs.sign()
            time.sleep(0.01)
    assert capsys.readouterr().err == ""


def seen_by(tmp_path: Path, *others: Seen) -> str:
    """The line of process 0 of as many as there are others and itself."""
    signs.sign("value")
    (tmp_path / "alive").mkdir()
    for process, one in enumerate(others, start=1):
        (tmp_path / "alive" / f"{process}.json").write_text(json.dumps(one._asdict()))
    watchdog = Watchdog(epath.Path(tmp_path), 60, process=0, processes=3)
    watchdog._write()
    return watchdog.line(61.4)


def test_the_process_that_is_behind_is_named(tmp_path: Path):
    line = seen_by(tmp_path, Seen("b", "value", 1), Seen("c", "rollout", 0))
    assert line == (
        "no sign of life for 61 s in stage 'value'; "
        "behind the others: process 2 on host c, in stage 'rollout'"
    )


def test_nobody_is_behind(tmp_path: Path):
    line = seen_by(tmp_path, Seen("b", "value", 1), Seen("c", "value", 1))
    assert line.endswith("all processes are as far: devices or the network between them hang")


def test_a_process_that_never_came(tmp_path: Path):
    assert seen_by(tmp_path, Seen("b", "value", 1)).endswith("ever heard of process 2")


def test_a_damaged_file_is_as_none(tmp_path: Path):
    (tmp_path / "alive").mkdir()
    (tmp_path / "alive" / "0.json").write_text("[]")
    (tmp_path / "alive" / "1.json").write_text('{"host": "b"}')
    watchdog = Watchdog(epath.Path(tmp_path), 60, process=0, processes=2)
    assert watchdog.line(60.0).endswith("ever heard of process 0, 1")
