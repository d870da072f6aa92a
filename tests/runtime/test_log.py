"""Tests the record of a run and what the display shows of it."""

import io
import json
import math
import os
import pathlib
import struct
import sys
import types
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from helpers.refusals import refuses
from rich.console import Console
from tensorboardX.proto import event_pb2

from vinejax.core.settings import LogConfig
from vinejax.runtime import display, watchdog
from vinejax.runtime import events as events_module
from vinejax.runtime import log as log_module
from vinejax.runtime.log import RunLog


def open_log(folder: pathlib.Path, resumed_at: int | None = 0, **options: object) -> RunLog:
    wandb, name, group = (
        str(options.pop(field, "")) for field in ("wandb", "wandb_name", "wandb_group")
    )
    cfg = LogConfig(wandb=wandb, wandb_name=name, wandb_group=group)
    return RunLog(epath.Path(folder), cfg, 4, resumed_at=resumed_at, **options)  # pyright: ignore


def lines(folder: pathlib.Path) -> list[dict]:
    text = (folder / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


def points(folder: pathlib.Path) -> list[tuple[str, int, int]]:
    return [(line["stage"], line["iteration"], line["step"]) for line in lines(folder)]


def events(folder: pathlib.Path) -> Iterator[Any]:
    """Events of all files of a folder, in order; a record is length, checksum, data, checksum."""
    for file in sorted(folder.iterdir()):
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            yield event_pb2.Event.FromString(data[12 : 12 + length])  # pyright: ignore
            data = data[16 + length :]


def scalars(folder: pathlib.Path) -> list[tuple[str, int, float]]:
    return [
        (value.tag, event.step, value.simple_value)
        for event in events(folder)
        for value in event.summary.value
    ]


def die(*_: object) -> None:
    """Ends a call as a kill does, for whatever it would have done afterwards."""
    raise KeyboardInterrupt


def test_metrics_are_strict_json_with_the_place_first(tmp_path: pathlib.Path):
    with open_log(tmp_path) as log:
        values = {"a": 1.5, "b": np.float32(0.25), "c": jnp.float32(2), "d": jnp.bfloat16(0.5)}
        values |= {
            "nan": math.nan,
            "inf": np.float64("-inf"),
            "count": np.int64(7),
            "jnan": jnp.nan,
        }
        log.metrics(3, 12, "train", values)
        text = (tmp_path / "metrics.jsonl").read_text()  # on disk at once
    assert list(json.loads(text))[:3] == ["iteration", "step", "stage"]
    expected = {"iteration": 3, "step": 12, "stage": "train", "a": 1.5, "b": 0.25, "c": 2, "d": 0.5}
    assert lines(tmp_path) == [expected | {"nan": None, "inf": None, "count": 7, "jnan": None}]


def test_tensorboard_has_the_same_numbers(tmp_path: pathlib.Path):
    with open_log(tmp_path) as log:
        log.metrics(0, 10, "sft", {"sft/loss": 2.0})
        log.metrics(0, 0, "eval", {"eval/pass_at_1": 0.25})
        log.metrics(0, 4, "train", {"reward/mean": 0.5, "actor/kl": math.nan})
        log.metrics(1, 8, "train", {"reward/mean": 0.75})
    assert scalars(tmp_path / "tensorboard" / "sft") == [("sft/loss", 10, 2.0)]
    assert scalars(tmp_path / "tensorboard" / "eval") == [("eval/pass_at_1", 0, 0.25)]
    expected = [("reward/mean", 0, 0.5), ("reward/mean", 1, 0.75)]
    assert scalars(tmp_path / "tensorboard" / "train") == expected


@pytest.mark.parametrize("remote", [True, False])
def test_an_object_store_gets_events_at_intervals(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, remote: bool
):
    """Every upload is of the whole file, so one per record would grow with the run's square."""
    clock, flushed = [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr(events_module, "is_remote", lambda _: remote)
    file = events_module.Events(epath.Path(tmp_path), None, "")
    monkeypatch.setattr(file._writer, "flush", lambda: flushed.append(clock[0]))
    times = (0.0, 29.0, 30.0, 59.0, 61.0)
    for clock[0] in times:
        file.add({"x": 1.0}, 0)
    monkeypatch.undo()
    file.close()
    assert flushed == ([0.0, 30.0, 61.0] if remote else [*times])


def test_an_error_of_the_last_events_is_raised_unless_another_ends_the_run(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    close = log_module.Events.close

    def fail(events: log_module.Events) -> None:
        close(events)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log_module.Events, "close", fail)
    for divisor, error in ((1, OSError), (0, ZeroDivisionError)):
        with pytest.raises(error), open_log(tmp_path) as log:
            log.metrics(0, 4, "train", {"x": 1.0})
            _ = 1 / divisor


def test_tensorboard_is_told_what_a_resumed_run_repeats(tmp_path: pathlib.Path):
    for start in (0, 7):
        with open_log(tmp_path, resumed_at=start) as log:
            log.metrics(start, start, "train", {"x": 1.0})
            log.metrics(start + 1, start, "eval", {"x": 1.0})
            log.metrics(0, 3, "sft", {"x": 1.0})
    for stage, purged in {"train": [0, 7], "eval": [1, 8], "sft": [3, 3]}.items():
        found = events(tmp_path / "tensorboard" / stage)
        assert sorted(event.step for event in found if event.session_log.status) == purged


def test_a_resumed_run_repeats_no_metric(tmp_path: pathlib.Path):
    with open_log(tmp_path) as log:
        for step in (10, 20):
            log.metrics(0, step, "sft", {"sft/loss": 1.0})
        for i in range(4):
            if i % 2 == 0:
                log.metrics(i, 4 * i, "eval", {"eval/pass_at_1": 0.1})
            log.metrics(i, 4 * i + 4, "train", {"x": 1.0})
    sft = [("sft", 0, 10), ("sft", 0, 20)]
    first = [("eval", 0, 0), ("train", 0, 4), ("train", 1, 8)]
    log = open_log(tmp_path, resumed_at=2)
    assert points(tmp_path) == [*sft, *first, ("eval", 2, 8)]
    with log:
        log.metrics(2, 8, "eval", {"eval/pass_at_1": 0.2})
        log.metrics(2, 12, "train", {"x": 2.0})
    assert points(tmp_path) == [*sft, *first, ("eval", 2, 8), ("train", 2, 12)]
    assert lines(tmp_path)[-2]["eval/pass_at_1"] == 0.2


def test_an_evaluation_that_is_not_repeated_stays(tmp_path: pathlib.Path):
    with open_log(tmp_path) as log:
        for i in range(4):
            log.metrics(i, 4 * i + 4, "train", {"x": 1.0})
        log.metrics(4, 16, "eval", {"eval/pass_at_1": 0.1})
    with open_log(tmp_path, resumed_at=4) as log:
        log.metrics(4, 20, "train", {"x": 1.0})
    assert ("eval", 4, 16) in points(tmp_path) and len(points(tmp_path)) == 6


def test_a_run_that_begins_again_repeats_no_metric(tmp_path: pathlib.Path):
    """A run that was killed before its first checkpoint starts over with the warm-up."""
    for _ in range(2):
        with open_log(tmp_path) as log:
            for step in (10, 20, 30):
                log.metrics(0, step, "sft", {"sft/loss": 1.0})
                warm_up = [step for stage, _, step in points(tmp_path) if stage == "sft"]
                assert warm_up == [s for s in (10, 20, 30) if s <= step]
            log.metrics(0, 0, "eval", {"eval/pass_at_1": 0.1})
            log.metrics(0, 4, "train", {"x": 1.0})
    expected = [("sft", 0, 10), ("sft", 0, 20), ("sft", 0, 30), ("eval", 0, 0), ("train", 0, 4)]
    assert points(tmp_path) == expected


def test_evaluation_alone_drops_nothing(tmp_path: pathlib.Path):
    with open_log(tmp_path) as log:
        for i in range(4):
            log.metrics(i, 4 * i, "eval", {"eval/pass_at_1": 0.1})
            log.metrics(i, 4 * i + 4, "train", {"x": 1.0})
    before = points(tmp_path)
    with open_log(tmp_path, resumed_at=None) as log:
        log.metrics(2, 8, "test", {"test/pass_at_1": 0.3})
        log.metrics(2, 8, "eval", {"eval/pass_at_1": 0.3})
    before.remove(("eval", 2, 8))  # the new one replaces it
    assert points(tmp_path) == [*before, ("test", 2, 8), ("eval", 2, 8)]


@pytest.mark.parametrize("cut", ['{"iteration": 1, "st', '{"iteration": 1, "stage": "eval"}'])
def test_a_line_that_a_crash_cut_is_dropped(tmp_path: pathlib.Path, cut: str):
    whole = '{"iteration": 0, "step": 4, "stage": "train"}\n'
    (tmp_path / "metrics.jsonl").write_text(whole + cut)
    with open_log(tmp_path, resumed_at=1) as log:
        log.metrics(1, 8, "train", {})
    assert points(tmp_path) == [("train", 0, 4), ("train", 1, 8)]


@pytest.mark.parametrize(
    "damage", [b"nonsense", b"\xff\xfe\x00{", b"[1]", b'{"stage": 3}', b"{" * 9999]
)
def test_damaged_metrics_are_repaired_and_kept(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], damage: bytes
):
    """Readable lines stay in order, and another file keeps the damaged one."""
    with open_log(tmp_path) as log:
        for i in range(3):
            log.metrics(i, i, "train", {"x": i})
    file = tmp_path / "metrics.jsonl"
    whole = file.read_bytes().splitlines(keepends=True)
    damaged = b"".join([whole[0], damage + b"\n", whole[2]])
    file.write_bytes(damaged)
    capsys.readouterr()
    with open_log(tmp_path, resumed_at=3):
        assert file.read_bytes() == whole[0] + whole[2]
        assert (tmp_path / "metrics.jsonl.damaged").read_bytes() == damaged
    assert capsys.readouterr().out.splitlines() == [
        f"{file}: 1 of 3 lines cannot be read and are dropped (2); as it was: {file.name}.damaged",
        f"{file}: iterations that are done without a record: 1, 1 to 1",
    ]


def test_a_whole_last_line_that_cannot_be_read_is_kept(tmp_path: pathlib.Path):
    """No crash has cut it off, so it may be more than the record of one iteration."""
    (tmp_path / "metrics.jsonl").write_text("nonsense\n")
    with open_log(tmp_path):
        assert (tmp_path / "metrics.jsonl").read_text() == ""
    assert (tmp_path / "metrics.jsonl.damaged").read_text() == "nonsense\n"


@pytest.mark.parametrize("repaired", [True, False])
def test_a_start_that_is_killed_loses_no_record(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, repaired: bool
):
    """metrics.jsonl is the only copy: it is not written in place, to repair it or to resume."""
    with open_log(tmp_path) as log:
        for i in range(3):
            log.metrics(i, i, "train", {"x": i})
    file = tmp_path / "metrics.jsonl"
    if repaired:
        file.write_text(file.read_text() + "cut off")
    before = file.read_text()
    monkeypatch.setattr(log_module, "write_atomic", die)
    with pytest.raises(KeyboardInterrupt):
        open_log(tmp_path, resumed_at=1)
    assert file.read_text() == before


def test_episodes_of_iterations_that_come_again_are_dropped(tmp_path: pathlib.Path):
    """Else a run that is resumed with fewer iterations shows solutions that it never had."""

    def files() -> list[str]:
        return sorted(file.name for file in (tmp_path / "episodes").iterdir())

    with open_log(tmp_path) as log:
        for i in (1, 2, 10):
            log.episodes(i, [{"i": i}])
    (tmp_path / "episodes" / "own.jsonl").write_text("a user's\n")
    for other in ({"resumed_at": None}, {"resumed_at": 2, "is_writer": False}):
        with open_log(tmp_path, **other):
            pass
    assert files() == ["1.jsonl", "10.jsonl", "2.jsonl", "own.jsonl"]
    with open_log(tmp_path, resumed_at=2):
        pass
    assert files() == ["1.jsonl", "own.jsonl"]


def test_what_a_start_says_of_an_interrupted_run(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    with open_log(tmp_path) as log:
        for i in range(4):
            if i == 3:
                log.metrics(i, i, "eval", {"x": i})
            log.metrics(i, i, "train", {"x": i})
            log.episodes(i, [{"i": i}] * i)  # the first file is empty
    for name in ("metrics.jsonl", "episodes/1.jsonl", "episodes/3.jsonl"):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-3])
    capsys.readouterr()
    with open_log(tmp_path, resumed_at=2):
        pass
    metrics = tmp_path / "metrics.jsonl"
    assert capsys.readouterr().out.splitlines() == [
        f"{metrics}: the last line was cut off and is dropped",
        f"{metrics}: iterations on record without a checkpoint, done again: 1",
        f"{tmp_path}/episodes/1.jsonl: ends in mid-line; the report leaves that line out",
    ]
    with open_log(tmp_path, resumed_at=2):
        pass
    assert len(capsys.readouterr().out.splitlines()) == 1  # of the episodes
    metrics.unlink()
    with open_log(tmp_path / "gone", resumed_at=2):
        pass
    assert "iterations that are done without a record: 2, 0 to 1" in capsys.readouterr().out


def test_object_stores_get_the_whole_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_module, "is_remote", lambda path: True)
    with open_log(tmp_path) as log:
        for i in range(3):
            log.metrics(i, i, "train", {"x": i})
    assert points(tmp_path) == [("train", i, i) for i in range(3)]


def test_timings_last_until_the_next_line(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    clock, shown = [0.0], []
    monkeypatch.setattr(display.Display, "stage", lambda self, name: shown.append(name))
    monkeypatch.setattr(watchdog, "OWN_SIGNS", watchdog.Signs("a", "start", 0))
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def work(seconds: float) -> None:
        clock[0] += seconds

    with open_log(tmp_path) as log:
        with log.stage("rollout"):
            work(2)
        with log.stage("rollout"), log.stage("value"):
            work(3)
            assert watchdog.OWN_SIGNS == watchdog.Signs("a", "value", 3)
        with pytest.raises(ZeroDivisionError), log.stage("train"):
            work(1)
            _ = 1 / 0
        expected = {"timing_s/rollout": 5.0, "timing_s/value": 3.0, "timing_s/train": 1.0}
        assert log.timings == expected
        assert shown == ["rollout", "", "rollout", "value", "rollout", "", "train", ""]
        log.metrics(0, 4, "train", {"x": 1.0, **log.timings})
        assert log.timings == {}
    assert lines(tmp_path)[0].items() >= expected.items()


def test_episodes_are_whole_files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    rows = [
        {
            "values": np.array([0.5, math.nan]),
            "ids": [1, np.int32(2)],
            "text": "é\u2028",
            "a": None,
        }
    ]
    with open_log(tmp_path) as log:
        log.episodes(3, rows)
        log.episodes(3, iter([*rows, *rows]))
        with pytest.raises(TypeError):
            log.episodes(3, [{"bad": object()}])
        monkeypatch.setattr(log_module, "write_atomic", die)
        with pytest.raises(KeyboardInterrupt):  # a kill leaves those of the start before
            log.episodes(3, [{"a": 1}])
    files = list((tmp_path / "episodes").iterdir())
    assert [file.name for file in files] == ["3.jsonl"]
    found = [json.loads(line) for line in files[0].read_text().splitlines()]
    assert found == 2 * [{"values": [0.5, None], "ids": [1, 2], "text": "é\u2028", "a": None}]


def test_other_processes_do_nothing(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture):
    with open_log(tmp_path, is_writer=False, wandb="x") as log:
        with log.stage("train"):
            log.progress(1, 2)
        assert set(log.timings) == {"timing_s/train"}
        log.message("hello")
        log.metrics(0, 4, "train", {"x": 1.0})
        assert log.timings == {}
        log.episodes(0, [{}])
    assert list(tmp_path.iterdir()) == [] and capsys.readouterr().out == ""


def test_missing_wandb_is_one_line_before_anything_is_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with refuses("log.wandb"):
        open_log(tmp_path, wandb="project")
    assert list(tmp_path.iterdir()) == []


def test_wandb_that_does_not_start_is_one_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    class CommError(Exception):
        """As the package raises it without the network, below its `Error`."""

    def refuse(**_: object) -> None:
        raise CommError("Failed to get resume status\nwhile retrying: no such host")

    wandb = types.SimpleNamespace(init=refuse, Error=CommError)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    with refuses("log.wandb"):
        open_log(tmp_path, wandb="project")
    # Another host would wait for the first one.
    monkeypatch.setattr("vinejax.runtime.log.exchange", lambda own: [True, own])
    with refuses("log.wandb"):
        open_log(tmp_path, is_writer=False, wandb="project")


def test_wandb_continues_the_same_run(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Curves are drawn over iterations, because the steps that W&B counts cannot go back."""
    started, logged, ended, axes = [], [], [], []

    class Run:
        log = staticmethod(logged.append)  # without a step
        define_metric = staticmethod(lambda name, step_metric: axes.append((name, step_metric)))
        finish = staticmethod(lambda exit_code: ended.append(exit_code))

    wandb = types.SimpleNamespace(init=lambda **options: started.append(options) or Run())
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    (tmp_path / "config.json").write_text('{"config": {"seed": 1}}')
    with open_log(tmp_path, wandb="project", wandb_name="mine", wandb_group="all") as log:
        log.metrics(0, 4, "train", {"x": np.float32(1)})
        log.metrics(1, 8, "train", {"x": 2.0})
    with pytest.raises(ZeroDivisionError), open_log(tmp_path, 1, wandb="project") as log:
        log.metrics(1, 8, "train", {"x": 3.0})  # again, from the checkpoint before it
        _ = 1 / 0
    numbers = [(line["iteration"], line["step"], line["x"]) for line in logged]
    assert numbers == [(0, 4, 1.0), (1, 8, 2.0), (1, 8, 3.0)]
    assert axes == 2 * [("*", "iteration"), ("sft/*", "step")]
    assert started[0]["id"] == started[1]["id"] and started[0]["project"] == "project"
    assert started[0]["config"] == {"seed": 1} and started[0]["resume"] == "allow"
    assert [(run["name"], run["group"]) for run in started] == [
        ("mine", "all"),
        (tmp_path.name, None),
    ]
    assert ended == [0, 1]


def test_plain_lines(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    clock = [0.0]
    for place in ("time.monotonic", "rich.console.monotonic"):
        monkeypatch.setattr(place, lambda: clock[0])
    with open_log(tmp_path) as log:
        log.message("[bold]as it is[/bold]")
        clock[0] += 3
        log.metrics(0, 50, "sft", {"sft/loss": 1.2345})
        clock[0] += 10
        log.metrics(0, 0, "eval", {"eval/pass_at_1": 0.381, "eval/pass_at_1_low": 0.3, "t": 1})
        for i, seconds in enumerate((60, 20, 40)):  # the first one compiles
            clock[0] += seconds
            log.metrics(i, 4, "train", {"reward/mean": 0.41, "perf/tokens_per_s": 14823.2, "x": 1})
    assert capsys.readouterr().out.splitlines() == [
        "[bold]as it is[/bold]",
        "sft step 50  loss 1.23  3.0 s",
        "validation after 0  pass@1 0.381  10.0 s",
        "iteration 1/4  reward 0.41  tokens/s 14,823  60.0 s",
        "iteration 2/4  reward 0.41  tokens/s 14,823  20.0 s  eta 40s",
        "iteration 3/4  reward 0.41  tokens/s 14,823  40.0 s  eta 30s",
    ]


def test_bars_in_a_terminal(monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    for place in ("time.monotonic", "rich.console.monotonic"):
        monkeypatch.setattr(place, lambda: clock[0])
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    shown = display.Display(8, finished=3)

    def drawn() -> list[list[str]]:
        """The words of each bar, without the bar itself."""
        console = Console(width=100, record=True, file=io.StringIO())
        console.print(shown.bars.get_renderable())
        rows = (line.replace("\u2578", " ").split() for line in console.export_text().splitlines())
        return [[word for word in row if set(word) != {"\u2501"}] for row in rows]

    assert not shown.bars.disable
    assert drawn() == [["iteration", "3/8", "0:00:00", "-:--:--"]]
    shown.stage("values")
    assert drawn()[1] == ["values", "0/?", "0:00:00"]
    shown.progress(12, 512)
    clock[0] += 75
    shown.progress(37, 512)
    assert drawn()[1] == ["values", "37/512", "0:01:15", "0:23:45"]
    shown.stage("")
    shown.record(3, 12, "eval", {"eval/pass_at_1": 0.5, "eval/pass_at_16": 0.9})
    shown.record(3, 16, "train", {"reward/mean": 0.25})
    assert drawn() == [["iteration", "4/8", "0:01:15", "-:--:--"]]  # it compiled
    clock[0] += 7200
    shown.record(4, 20, "train", {"reward/mean": 0.25})
    assert drawn() == [["iteration", "5/8", "2:01:15", "6:00:00"]]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_run_outlives_the_reader_of_its_output(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
):
    """A closed terminal (EIO), or `| tee` that Ctrl-C has ended (EPIPE)."""
    reader, writer = os.openpty() if is_terminal else os.pipe()
    monkeypatch.setenv("TERM", "xterm")
    with open(writer, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        with open_log(tmp_path) as log:
            log.message("a line that is read")
            stream.flush()
            read = b""
            while b"a line that is read" not in read:  # a bar is drawn before it
                read += os.read(reader, 4096)
            os.close(reader)
            with log.stage("train"):
                log.metrics(0, 4, "train", {"reward/mean": 0.5})
            print("of other code", flush=True)
    assert [line["reward/mean"] for line in lines(tmp_path)] == [0.5]


def test_a_full_disk_under_the_output_is_an_error(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    stream = types.SimpleNamespace(write=fail, flush=fail)
    with pytest.raises(OSError, match="No space left"):
        display.Output(stream).write("a line")


def test_there_are_no_bars_where_the_output_is_no_terminal(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
):
    with open_log(tmp_path) as log, log.stage("train"):
        log.progress(1, 2)
        log.message("a line")
    assert capsys.readouterr().out == "a line\n"


def test_terminal_display_starts_and_ends(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(ZeroDivisionError), open_log(tmp_path) as log:
        with log.stage("train"):
            log.message("[bold]as it is[/bold]")
            log.metrics(0, 4, "train", {"reward/mean": 0.5})
            _ = 1 / 0
    out = capsys.readouterr().out
    assert "[bold]as it is[/bold]" in out and "iteration 1/4" in out
    assert out.count("\x1b[?25l") == out.count("\x1b[?25h")  # the cursor is back


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (59.7, "1m00s"), (80, "1m20s"), (7500, "2h05m"), (100_000, "1d03h")],
)
def test_durations(seconds: float, text: str):
    assert display.format_duration(seconds) == text
