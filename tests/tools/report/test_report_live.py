"""The page of a running run: the line on the state of the run, and what renewing a page costs."""

import base64
import hashlib
import json
import pathlib
import random
import re
import subprocess
import sys
import time
from typing import Any

import pytest
from etils import epath
from helpers.tools.fake_run import sample_episode, sample_metrics, train_line, write_run
from helpers.tools.report_cases import Page

from vinejax.records import read
from vinejax.runtime import stopping
from vinejax.runtime.lock import WorkdirLock
from vinejax.runtime.status import Status, read_status, write_status
from vinejax.tools.report import live
from vinejax.tools.report.build import build_report
from vinejax.tools.report.live import LivePage
from vinejax.tools.report.summary_line import standing_line


def page_of(workdir: pathlib.Path) -> str:
    return (workdir / "report.html").read_text(encoding="utf-8")


def words(source: str) -> str:
    """The line on the state of the run; '' without one."""
    found = re.search(r'<p class="standing.*?</p>', source)
    return Page(found[0]).text if found else ""


def add_iteration(workdir: pathlib.Path, i: int) -> None:
    line = train_line(i, 0.5, 0.5, random.Random(i))
    with (workdir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    episode = json.dumps(sample_episode(i, 0, 0.3, 9))
    (workdir / f"episodes/{i}.jsonl").write_text(episode + "\n")


@pytest.fixture
def run(tmp_path: pathlib.Path):
    """A workdir with six iterations, whose lock this process holds."""
    write_run(tmp_path, iterations=6, episodes=4)
    with WorkdirLock(epath.Path(tmp_path)) as lock:
        lock.take()
        yield tmp_path


def never(text: str) -> None:
    raise AssertionError(text)


def test_a_running_page_reloads_itself_and_the_last_one_does_not(run: pathlib.Path):
    with LivePage(epath.Path(run), 8, 6, never) as page:
        page.renew()
        source = page_of(run)
        assert words(source).startswith("Running after iteration 6 of 8; written 2")
        code = re.findall(r"<script>(.*?)</script>", source, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(code[0].encode()).digest()).decode()
        assert len(code) == 1 and f"script-src 'sha256-{digest}';" in source
        assert not re.search(r"https?:|src=|url\(|@import", source)
        add_iteration(run, 6)
        page.done = 7
        page.renew()
        assert "Running after iteration 7 of 8" in words(page_of(run))
        assert "iteration 6" in Page(page_of(run).replace(code[0], "")).text
        page.done = 8
        assert str(page.finish()) == str(run / "report.html")
    assert words(page_of(run)).startswith("Finished 2") and "iteration 8 of 8" in words(
        page_of(run)
    )
    assert "<script" not in page_of(run) and "script-src" not in page_of(run)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (stopping.Stopped(15), "Stopped 2.*: stopped by SIGTERM; checkpoints/6 is saved"),
        (KeyboardInterrupt(), "Stopped 2.*: interrupted; the same call resumes the run"),
        (ValueError("no\n <b>room</b>"), "Ended by an error 2.*: no <b>room</b>"),
        (KeyError(), "Ended by an error 2.*: KeyError"),
    ],
)
def test_the_page_says_why_a_run_ended(run: pathlib.Path, error: BaseException, shown: str):
    if isinstance(error, stopping.Stopped):
        error.next_start = "checkpoints/6 is saved"
    with pytest.raises(type(error)), LivePage(epath.Path(run), 8, 6, never) as page:
        page.renew()
        raise error
    assert re.match(shown, words(page_of(run))), words(page_of(run))
    assert "<script" not in page_of(run)


def test_a_killed_run_is_said_at_the_next_look(tmp_path: pathlib.Path):
    """The process of the run wrote that it runs, and its lock is free."""
    write_run(tmp_path, iterations=2, episodes=2)
    workdir = epath.Path(tmp_path)
    write_status(workdir, Status("running", 2, 8, time.time(), 600.0, pid=4711))
    build_report(workdir)
    assert words(page_of(tmp_path)).startswith("No sign of life process 4711 on host ")
    assert "after iteration 2 of 8" in standing_line(workdir)
    assert "<script" not in page_of(tmp_path)


def test_a_run_whose_iterations_were_lowered_is_not_at_the_second_of_one(tmp_path: pathlib.Path):
    workdir = epath.Path(tmp_path)
    write_status(workdir, Status("finished", 2, 1, 0.0))
    assert standing_line(workdir) == "Finished: 1970-01-01 00:00:00 UTC, after iteration 2"


def test_renewing_takes_a_small_share_of_the_time(
    run: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """Pages in between are left out; the heartbeat is not."""
    clock = [1000.0]
    made = []

    def render(found: read.RunRecords) -> str:
        clock[0] += 2.0
        made.append(clock[0])
        return "page"

    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(live, "render_page", render)
    with LivePage(epath.Path(run), 1000, 6, never) as page:
        for done in range(6, 206):
            page.done = done
            page.renew()
            assert getattr(read_status(epath.Path(run)), "done", None) == done
            clock[0] += 3.0
        assert len(made) == 2 + (200 - 2) * 3 // 102
        found = read_status(epath.Path(run))
        assert found is not None and found.patience_s == pytest.approx(3 * (3 + 2 + 100))
        page.finish()


def test_a_page_that_cannot_be_written_ends_no_run(run: pathlib.Path):
    said: list[str] = []
    with LivePage(epath.Path(run), 8, 6, said.append) as page:
        (run / "report.html").mkdir()
        page.renew()
        page.renew()
        assert page.finish() is None
    assert len(said) == 1 and "report.html: not written (" in said[0]


@pytest.mark.slow  # 20 s
def test_ten_thousand_iterations_stay_small_and_quick(tmp_path: pathlib.Path):
    """A page has less than 5 MB and takes less than 10 s of CPU time, whatever else runs.

    A process of its own makes it, because the type checks of tests take longer than the report.
    """
    rng = random.Random(0)
    prose = "".join(rng.choice("abcdefgh <&\"'\n") for _ in range(1500))

    def grown(i: int, e: int) -> dict[str, Any]:
        episode = sample_episode(i, e, 0.2, 9)
        said = prose if i else "\n" * 1500  # a line end takes more bytes than any character
        steps = [
            step | {"text": prose, "continuations": [c | {"text": said} for c in kept]}
            for step in episode["steps"] * 3
            if (kept := step["continuations"])
        ]
        return episode | {"steps": steps}

    (tmp_path / "episodes").mkdir()
    short = json.dumps(sample_episode(0, 0, 0.3, 9)) + "\n"
    for i in range(10_000):
        (tmp_path / f"episodes/{i}.jsonl").write_text(short)
    for i in (0, 2500, 5000, 7499, 9999):
        lines = [json.dumps(grown(i, e)) for e in range(64)]
        (tmp_path / f"episodes/{i}.jsonl").write_text("\n".join(lines))
    more = {f"more/metric_{n}": 0.123456789 * n for n in range(50)}
    lines = [json.dumps(m | more) + "\n" for m in sample_metrics(10_000, random.Random(0))]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    program = f"""
import time
from etils import epath
from vinejax.tools.report.build import build_report
start = time.process_time()
size = build_report(epath.Path({str(tmp_path)!r})).stat().length
print(time.process_time() - start, size)
"""
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    taken, size = map(float, printed.stdout.split())
    assert taken < 10
    assert 1_000_000 < size < 5_000_000
