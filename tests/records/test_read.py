"""Tests that the files of a run are read whole, also while a run writes there or after a kill."""

import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from etils import epath

from vinejax.records import read
from vinejax.runtime.lock import WorkdirLock
from vinejax.runtime.status import Status, write_status


def line(iteration: int, **values: float) -> str:
    return json.dumps({"iteration": iteration, "step": 0, "stage": "train"} | values) + "\n"


def add_iteration(workdir: Path, iteration: int) -> None:
    with (workdir / "metrics.jsonl").open("a") as file:
        file.write(line(iteration, **{"reward/mean": iteration / 64, "actor/kl": 0.5}))
    (workdir / f"episodes/{iteration}.jsonl").write_text(f'{{"reward": {iteration}}}\n')


def values_of(workdir: Path) -> list[read.Record]:
    return [*read.read_run(epath.Path(workdir)).records]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A workdir with six iterations of a run that goes on, whose lock this process holds."""
    (tmp_path / "episodes").mkdir()
    for iteration in range(6):
        add_iteration(tmp_path, iteration)
    write_status(epath.Path(tmp_path), Status("running", 6, 100, time.time(), 60.0))
    with WorkdirLock(epath.Path(tmp_path)) as lock:
        lock.take()
        yield tmp_path


def test_what_was_added_is_what_a_new_reader_finds(run: Path):
    reader = read.RunReader(epath.Path(run))
    before = reader.read()
    assert before == read.read_run(epath.Path(run))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 6, "stage": "train", "rew')
    assert reader.read().records == before.records
    with (run / "metrics.jsonl").open("a") as file:
        file.write('ard/mean": 0.25}\n{"iteration": 7, "stage": "train", "reward/mean": 0.5}')
    assert reader.read().records[-1] == ("train", 7, {"reward/mean": 0.5})
    with (run / "metrics.jsonl").open("a") as file:
        file.write("\n")
    for i in range(8, 30):
        add_iteration(run, i)
        found = reader.read()
        assert found == read.read_run(epath.Path(run))
    assert [record.position for record in found.records] == list(range(30))
    assert found.episodes == {i: [{"reward": i}] for i in (0, 10, 20, 29)}, "those that stay"
    write_status(epath.Path(run), Status("finished", 30, 30, time.time()))
    assert list(reader.read().episodes) == [0, 9, 16, 22, 29], "6 and 7 have none"


@pytest.mark.parametrize("in_place", [True, False])
def test_a_file_that_was_replaced_is_read_from_its_beginning(run: Path, in_place: bool):
    """A run that resumes writes another file of this name, which can be the longer one."""
    reader, file = read.RunReader(epath.Path(run)), run / "metrics.jsonl"
    reader.read()
    kept = "".join(file.read_text().splitlines(keepends=True)[:3])
    if not in_place:
        kept += "".join(line(i, **{"reward/mean": 0.75}) for i in range(3, 30))
        (run / "other").write_text(kept)
        os.replace(run / "other", file)
    file.write_text(kept)
    assert reader.read() == read.read_run(epath.Path(run))
    file.unlink()
    assert reader.read().records == []


def test_odd_lines_of_a_log_are_survived(tmp_path: Path):
    """NaN, text and bools are no numbers; what has no position, and no object, is left out."""
    lines = [
        '{"iteration": 0, "stage": "train", "reward/mean": 0.25, "actor/kl": NaN, "x": "\xfc"}',
        '{"iteration": 1, "stage": "train", "reward/mean": null, "actor/kl": Infinity}',
        '{"iteration": 2, "stage": "tr{"iteration": 2, "stage": "train", "reward/mean": 9}',
        '{"iteration": 2, "reward/mean": 0.5, "actor/loss": "nan"}',
        '{"iteration": 2, "stage": "train", "reward/mean": 0.75, "x/y": true, "step": 9}',
        "[1, 2]",
        "[" * 9999,
        '{"iteration": 0, "step": 20, "stage": "sft", "sft/loss": 2.0}',
        '{"stage": "train", "reward/mean": 77}',
        '{"iteration": 0, "stage": "eval", "eval/pass_at_1": 0.5}',
        '{"iteration": 3, "stage": "train", "rew',
    ]
    (tmp_path / "metrics.jsonl").write_bytes("\n".join(lines).encode("latin-1"))
    assert values_of(tmp_path) == [
        ("eval", 0, {"eval/pass_at_1": 0.5}),
        ("sft", 20, {"sft/loss": 2.0}),
        ("train", 0, {"reward/mean": 0.25}),
        ("train", 1, {}),
        ("train", 2, {"reward/mean": 0.75}),
    ]


def test_other_files_among_the_episodes_are_no_iterations(run: Path):
    for name in ("notes.jsonl", "6.jsonl.1f0c93ab.tmp", "-1.jsonl"):
        (run / "episodes" / name).write_text('{"reward": 9}\n')
    (run / "episodes/6.jsonl").write_text('{"rew')  # without a whole line it has no tab
    assert list(read.read_run(epath.Path(run), 9).episodes) == list(range(6))


def test_records_share_the_names_of_their_metrics(run: Path):
    """The process that trains keeps all records; the names take more memory than the numbers."""
    names = [name for record in read.read_run(epath.Path(run)).records for name in record.values]
    assert len({id(name) for name in names}) == len(set(names)) < len(names) / 2


@pytest.mark.parametrize(
    ("text", "holds"),
    [("", True), ('{"config": {}}', True), ('{"model_type": "llama"}', False), (None, False)],
)
def test_a_folder_with_a_damaged_record_holds_a_run(tmp_path: Path, text: str | None, holds: bool):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert read.holds_run(epath.Path(tmp_path)) is holds


@pytest.mark.parametrize(
    ("config", "gamma"),
    [({"ppo": {"gamma": 0.9}}, 0.9), ({"ppo": {"gamma": 0}}, 0.0), ({}, 1.0), (None, 1.0)],
)
def test_the_discount_is_that_of_the_run(config: Any, gamma: float):
    assert read.discount_of({"config": config}) == gamma


@pytest.mark.parametrize(
    ("value", "number"),
    [(3, 3.0), (-0.5, -0.5), (1e29, 1e29), (-1e31, None), (10**400, None), (math.nan, None)]
    + [(math.inf, None), (True, None), ("7", None), (None, None), ([1], None)],
)
def test_numbers_that_can_be_drawn(value: object, number: float | None):
    assert read.finite_number(value) == number


def test_spread_keeps_both_ends():
    assert read.spread(range(30), 5) == [0, 7, 14, 22, 29]
    assert read.spread([4, 9], 5) == [4, 9]
    assert read.spread([], 5) == []


def test_tabs_of_a_running_page_stay():
    assert read.steady(list(range(5)), 5) == [0, 1, 2, 3, 4]
    assert read.steady(list(range(31)), 5) == [0, 10, 20, 30]
    assert read.steady(list(range(40)), 5) == [0, 10, 20, 30, 39]
    assert read.steady(list(range(10_000)), 5) == [0, 5000, 9999]
    assert read.steady([], 5) == []
