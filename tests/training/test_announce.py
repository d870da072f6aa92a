"""Lines that a run prints at its start and end; test_train.py has the lines of a whole run."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from etils import epath

from vinejax.config.load import from_dict
from vinejax.core.settings import BudgetConfig, Config
from vinejax.session.budget import RunTotals
from vinejax.session.session import Session
from vinejax.training.announce import EXPORT, end_lines, head_line, start_line


@pytest.mark.parametrize(
    ("records", "lines"),
    [
        (
            [("test", 0, 0.25), ("eval", 0, 0.5), ("eval", 5, 0.625), ("test", 5, 0.75)],
            ["validation pass@1 0.500 to 0.625, test pass@1 0.250 to 0.750", EXPORT],
        ),
        ([("test", 0, 0.25), ("test", 5, 0.5)], ["test pass@1 0.250 to 0.500", EXPORT]),
        ([("test", 0, 0.25), ("eval", 0, 0.5)], []),  # without a checkpoint there is no export
        ([], []),
    ],
)
def test_the_end_has_the_first_and_the_last_accuracy(
    tmp_path: Path, records: list[tuple[str, int, float]], lines: list[str]
):
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for stage, iteration, accuracy in records:
            line = {"iteration": iteration, "step": 0, "stage": stage}
            file.write(json.dumps(line | {f"{stage}/pass_at_1": accuracy}) + "\n")
    assert end_lines(epath.Path(tmp_path)) == lines


def test_the_beginning_says_where():
    cfg = Config(iterations=7, budget=BudgetConfig(episodes=640))
    slow = "; programs are compiled when they are first needed"
    ended = "ended after iteration {}; with {} it would go on"
    some, most = RunTotals(episodes=632), RunTotals(episodes=633)  # a group has 8
    assert start_line(cfg, 0, RunTotals()) == f"begins: 7 iterations{slow}"
    assert start_line(cfg, 9, some) == ended.format(9, "iterations above 9")
    assert start_line(cfg, 5, most) == ended.format(5, "budget.episodes of at least 641")
    both = "iterations above 9 and budget.episodes of at least 641"
    assert start_line(cfg, 9, most) == ended.format(9, both)
    assert start_line(cfg, 5, some) == f"resumes after iteration 5 of 7, from checkpoints/5{slow}"


@pytest.mark.parametrize(("slots", "place"), [(None, "CPU, 1,024 slots; w"), (64, "CPU; w")])
def test_the_first_line_has_the_number_of_slots_unless_it_is_set(slots: int | None, place: str):
    cfg = from_dict({"rollout": {"slots": slots}})
    session = Mock(spec=Session, cfg=cfg, start={}, base=None, workdir=epath.Path("w"), slots=1024)
    assert head_line(session, {}).endswith(place)
