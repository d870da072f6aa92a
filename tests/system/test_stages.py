"""A run that dies after every single stage: no stage is done twice, and the result is the same."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods

from vinejax.engine.engine import Engine
from vinejax.methods import base
from vinejax.model.hf.weights import load_pretrained
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.runtime.journal import Entry
from vinejax.tasks.graded import GradedTask
from vinejax.training import loop

MOST_STARTS = 60
CASES: dict[str, dict[str, Any]] = {
    "vineppo": {"values": {"k": 3, "allocation": "bisection", "reuse": True, "max_states": None}},
    "ppo": {"checkpoint": {"every": 1}},
    "dapo": {"rollout": {"rounds": 2}},
    "single_stream": {"rollout": {"prompts": 12, "per_prompt": 1}},
    "spo_tree": {"spo_tree": {"branching": (3, 2), "segment": 4}},
    "restem": {"restem": {"problems": 8, "epochs": 2, "eval_every": 2}},
}


class Died(BaseException):
    """What ends a start; no code of the run catches it."""


def config(method: str, start: str) -> Any:
    fields: dict[str, Any] = {
        "iterations": 3,
        "model": {"path": start},
        "eval": {"every": 2, "samples": 2},
        "checkpoint": {"every": 10},
    }
    return methods.config(method, **fields | CASES[method])


def work_counted(patch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts tokens that are decoded and responses that are graded, over all starts."""
    done: Counter[str] = Counter()
    grow, grade = Engine._grow, GradedTask.grade

    def counted_grow(self: Engine, *args: Any):
        before = self.stats.decoded_tokens
        result = yield from grow(self, *args)
        done["tokens"] += self.stats.decoded_tokens - before
        return result

    def counted_grade(self: GradedTask, items: Any, ids: Any):
        done["graded"] += len(items)
        return grade(self, items, ids)

    patch.setattr(Engine, "_grow", counted_grow)
    patch.setattr(GradedTask, "grade", counted_grade)
    return done


def train_dying(cfg: Any, workdir: Path) -> int:
    """Trains, where every start dies once it has kept one more entry; the number of starts."""
    keep = Entry.keep

    def dying(self: Entry, *args: Any, **arrays: Any):
        keep(self, *args, **arrays)
        raise Died

    for starts in range(1, MOST_STARTS):
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Entry, "keep", dying)
                loop.train(cfg, workdir)
            return starts
        except Died:
            pass
    raise AssertionError(f"not finished after {MOST_STARTS} starts")


def compare(found: Path, expected: Path, start: str) -> None:
    lines = [cases.read_lines(path / "metrics.jsonl") for path in (found, expected)]
    assert cases.without_clock(lines[0]) == cases.without_clock(lines[1])
    for file in sorted((expected / "episodes").iterdir()):
        assert (found / "episodes" / file.name).read_bytes() == file.read_bytes()
    like = load_pretrained(start)[1]
    params = []
    for path in (found, expected):
        with Checkpoints(path / "checkpoints", keep=2) as checkpoints:
            params.append(checkpoints.restore_params(2, like)[0])
    cases.assert_equal(*params)


@pytest.mark.slow
@pytest.mark.parametrize("method", CASES)
def test_a_run_that_dies_after_every_stage(method: str, start: str, tmp_path: Path):
    cfg = dataclasses.replace(config(method, start), iterations=2)
    with pytest.MonkeyPatch.context() as patch:
        done = work_counted(patch)
        loop.train(cfg, tmp_path / "whole")
        expected = Counter(done)
        done.clear()
        starts = train_dying(cfg, tmp_path / "dying")
        assert done == expected
    assert starts > 8
    compare(tmp_path / "dying", tmp_path / "whole", start)
    for name in ("dying", "whole"):
        assert not (tmp_path / name / "journal").exists()


@pytest.mark.slow
def test_a_start_goes_on_in_the_iteration_that_was_under_way(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The process dies in the updates of the third iteration, and no checkpoint was saved."""
    cfg = config("vineppo", start)
    update, calls = base.update, []

    def dying(*args: Any):
        calls.append(None)
        if len(calls) == 3:
            raise Died
        return update(*args)

    monkeypatch.setattr(base, "update", dying)
    with pytest.raises(Died):
        loop.train(cfg, tmp_path)
    done = work_counted(monkeypatch)
    with pytest.raises(Died):
        monkeypatch.setattr(loop.Run, "_finish_iteration", _die_after(3))
        loop.train(cfg, tmp_path)
    assert done == Counter() and len(calls) == 6
    assert "iteration 3: " in capsys.readouterr().out


def _die_after(iterations_done: int) -> Any:
    finish = loop.Run._finish_iteration

    def dying(self: loop.Run):
        if self.at.done == iterations_done:
            raise Died
        finish(self)

    return dying
