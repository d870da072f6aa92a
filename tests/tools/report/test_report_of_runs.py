"""Pages that runs of the trainer leave: at their end, where they stop, and of turns."""

import signal
from pathlib import Path
from typing import Any

import pytest
from etils import epath
from helpers import loop_cases as cases

import vinejax
from vinejax.learner import update
from vinejax.learner.update import update_step
from vinejax.runtime import stopping
from vinejax.runtime.status import read_status
from vinejax.training import loop


def test_a_finished_run_has_its_page(finished_run: cases.Run):
    assert (finished_run.workdir / "report.html").stat().st_size > 10_000
    assert vinejax.run(finished_run.workdir).report.exists()
    status = read_status(epath.Path(finished_run.workdir))
    assert status is not None and (status.state, status.done) == ("finished", 3)


@pytest.mark.slow
def test_the_page_says_why_a_run_stopped(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*arguments: Any) -> Any:
        stopping.request(signal.SIGINT)
        return update_step(*arguments)

    monkeypatch.setattr(update, "update_step", interrupted)
    with pytest.raises(stopping.Stopped) as stop:
        loop.train(cases.config(model={"path": start}, iterations=1), tmp_path)
    why = f"{stop.value}; {stop.value.next_start}"
    assert why in (tmp_path / "report.html").read_text(encoding="utf-8")
    status = read_status(epath.Path(tmp_path))
    assert status is not None and (status.state, status.done, status.why) == ("stopped", 0, why)


@pytest.mark.slow
def test_the_page_of_turns_shows_who_said_what(tmp_path: Path):
    page = (Path(loop.train(cases.in_learned_doors(), tmp_path)) / "report.html").read_text("utf-8")
    assert "<details open><summary>Prompt as sent" in page and "maj@" not in page
    assert '<small>environment</small><span class="words environment">' in page
