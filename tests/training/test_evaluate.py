"""Tests `--mode=eval`: the policy it takes, and that its figures equal the training run's."""

import contextlib
import dataclasses
import functools
import json
import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from helpers import loop_cases as cases
from helpers.applied import stand_in

from vinejax.core.settings import Config
from vinejax.core.types import Problem, TrainState
from vinejax.model.hf.weights import load_pretrained
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.runtime.log import RunLog
from vinejax.session.session import Session
from vinejax.statistics.accuracy import pass_at_1
from vinejax.tasks.base import Split
from vinejax.tasks.graded import GradedTask
from vinejax.tasks.rewards import Reward, TrainerState
from vinejax.training import evaluate
from vinejax.training.evaluate import evaluate_run


@pytest.fixture(scope="module")
def run(finished_run: cases.Run) -> Path:
    return finished_run.workdir


def recorded(run: Path, line: int) -> dict[str, float]:
    """Test figures of the training run: line 0 at its start, line 1 at its end."""
    lines = [x for x in cases.read_lines(run / "metrics.jsonl") if x["stage"] == "test"]
    assert len(lines) == 2
    return {k.removeprefix("test/"): v for k, v in lines[line].items() if k.startswith("test/")}


def figures(record: dict[str, Any]) -> dict[str, float]:
    return {k: v for k, v in record.items() if k not in ("source", "problems", "samples")}


def start_config(run: Path) -> Config:
    return cases.config(model={"path": str(run / "warmup")})


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """The run with its last checkpoint only."""
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "best")
    return tmp_path / "run"


def test_start_and_end_differ(run: Path):
    """The policies differ, so that the tests below can tell them apart."""
    assert recorded(run, 0) != recorded(run, 1)


def test_a_folder_without_a_run_means_the_start(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    record = evaluate_run(start_config(run), tmp_path)
    assert (record["source"], record["problems"], record["samples"]) == ("the start", 6, 2)
    assert figures(record) == recorded(run, 0)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"{tmp_path}: holds no run; evaluates the start"
    assert printed[1] == "the start on 6 test problems, 2 samples each"
    assert printed[2].split() == ["pass_at_1", f"{record['pass_at_1']:.4f}"]


def test_each_data_set_of_a_split_has_its_accuracies(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    load = cases.FewProblems.load

    def named(self: cases.FewProblems, split: Split) -> list[Problem]:
        columns = [{"data_source": "openai/gsm8k"}, {"data_source": 7}, {}]
        problems = enumerate(load(self, split))
        return [dataclasses.replace(problem, columns=columns[i % 3]) for i, problem in problems]

    monkeypatch.setattr(cases.FewProblems, "load", named)
    record = evaluate_run(start_config(run), tmp_path)
    overall = figures(record)
    by_set = {name: overall.pop(name) for name in list(overall) if name.count("/")}
    assert overall == recorded(run, 0)
    rows = cases.read_lines(tmp_path / "eval" / "test.jsonl")
    for i, source in enumerate(("openai/gsm8k", "7", "arithmetic")):
        rewards = [[x["reward"] for x in row["responses"]] for row in rows[i::3]]
        assert len(rewards) == 2 and by_set[f"{source}/pass_at_1"] == pass_at_1(rewards)
    measures = {name for name in overall if name.startswith(("pass", "maj"))}
    assert {name.rpartition("/")[2] for name in by_set} == measures
    assert len(by_set) == 3 * len(measures)


def test_the_start_where_validation_found_none_better(
    run: Path, copy: Path, capsys: pytest.CaptureFixture[str]
):
    """No policy was kept as the best, because the start was better on validation."""
    record = evaluate_run(cases.config(), copy)
    assert "holds no run" not in capsys.readouterr().out
    assert record["source"] == "the start" and figures(record) == recorded(run, 0)


def test_the_newest_checkpoint_where_validation_has_chosen_none(run: Path, copy: Path):
    """Validation was evaluated only before the first iteration."""
    file = copy / "checkpoints" / "3" / "meta" / "metadata"
    meta = json.loads(file.read_text())
    assert meta["evaluated"] == 3
    file.write_text(json.dumps(meta | {"evaluated": 0}))
    (copy / "checkpoints/3/checksums.0-of-1.json").unlink()  # they are those of the file before
    before = (copy / "metrics.jsonl").read_bytes()
    record = evaluate_run(cases.config(), copy)
    assert record["source"] == "checkpoints/3" and figures(record) == recorded(run, 1)
    assert json.loads((copy / "eval" / "test.json").read_text()) == record
    assert (copy / "metrics.jsonl").read_bytes() == before


def test_the_best_policy_goes_before_the_newest(
    run: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
):
    """Reward functions get the number of its iterations."""
    states, graded = [], GradedTask.grade

    def noted(rewards: GradedTask, items: Any, ids: Any) -> list[Reward]:
        states.append(rewards.state)
        return graded(rewards, items, ids)

    monkeypatch.setattr(GradedTask, "grade", noted)
    _, start, _ = load_pretrained(str(copy / "warmup"))
    with Checkpoints(copy / "best", keep=1) as best:
        best.save_params(2, start, {"pass_at_1": 1.0})
    record = evaluate_run(cases.config(), copy)
    assert record["source"] == "best/2" and figures(record) == recorded(run, 0)
    assert states == [TrainerState(2, cases.config().iterations)]


def test_reward_functions_know_the_finished_iterations_in_evaluations_of_a_run(
    monkeypatch: pytest.MonkeyPatch,
):
    """A resumed run may evaluate before its first iteration."""
    states: list[TrainerState] = []
    graded = stand_in(GradedTask, state=None)
    session: Any = stand_in(Session, cfg=cases.config(iterations=5), graded=graded)
    session.set_progress = functools.partial(Session.set_progress, session)
    policy = TrainState(jnp.int32(7), {}, ())
    log = stand_in(RunLog, stage=lambda name: contextlib.nullcontext(), timings={})
    monkeypatch.setattr(evaluate, "solve", lambda *given: states.append(session.graded.state))
    monkeypatch.setattr(evaluate, "metrics_of", lambda *given: {"pass_at_1": 0.5})
    assert evaluate.evaluate(session, policy, "validation", 3, log) == 0.5
    assert states == [TrainerState(3, 5)]


def test_every_response_is_graded_in_one_batch_and_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    batches, graded = [], GradedTask.grade

    def noted(rewards: GradedTask, items: Any, ids: Any) -> list[Reward]:
        batches.append(items)
        assert all(ids)
        return graded(rewards, items, ids)

    monkeypatch.setattr(GradedTask, "grade", noted)
    record = evaluate_run(start_config(run), tmp_path)
    assert [len(batch) for batch in batches] == [12]
    rows = cases.read_lines(tmp_path / "eval" / "test.jsonl")
    task = cases.FewProblems()
    assert [row["problem_id"] for row in rows] == [p.id for p in task.load("test")]
    rewards = []
    for row, problem in zip(rows, task.load("test"), strict=True):
        assert (row["question"], row["answer"]) == (problem.question, problem.answer)
        assert len(row["responses"]) == 2
        for response in row["responses"]:
            # Unlike in training a response that was cut is graded like any other.
            assert response["reward"] == task.reward(problem, response["text"])
            rewards.append(response["reward"])
    assert record["pass_at_1"] == pytest.approx(sum(r >= 1 for r in rewards) / 12)


def test_fewer_problems_on_request(run: Path, tmp_path: Path):
    cfg = cases.config(eval={"problems": 4}, model={"path": str(run / "warmup")})
    record = evaluate_run(cfg, tmp_path)
    assert record["problems"] == 4 and len(cases.read_lines(tmp_path / "eval/test.jsonl")) == 4
