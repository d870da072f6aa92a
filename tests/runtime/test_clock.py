"""Tests the time that chat templates see: one per run, recorded only if a template asks for it."""

import datetime
from pathlib import Path

import pytest
from etils import epath

from vinejax.runtime import clock as module
from vinejax.runtime.clock import FILE, Clock


def test_a_time_that_was_asked_for_is_that_of_all_starts(tmp_path: Path):
    folder, clock = epath.Path(tmp_path), Clock()
    clock.pin(folder)
    clock.keep(folder)
    assert not (folder / FILE).exists(), "no template has asked"
    clock.note_asked()
    clock.keep(folder)
    later = Clock()
    later.pin(folder)
    assert later.time == clock.time
    clock.pin(epath.Path(tmp_path / "next"))  # the next run of the process, without such a template
    clock.keep(epath.Path(tmp_path / "next"))
    assert clock.time > later.time and [path.name for path in tmp_path.iterdir()] == [FILE]


def test_hosts_have_the_time_of_the_first_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = "2026-01-01T10:20:30"
    monkeypatch.setattr(module, "exchange", lambda own: [first, own])
    clock = Clock()
    clock.pin(epath.Path(tmp_path))
    assert clock.time == datetime.datetime.fromisoformat(first)
