"""`--mode=eval --sets`: the table, its record, and what an interrupted evaluation keeps."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from etils import epath
from helpers import loop_cases as cases
from helpers.applied import stand_in

from vinejax.core.errors import UserError
from vinejax.session.session import Session
from vinejax.statistics.accuracy import paired_interval
from vinejax.tasks.arithmetic import Arithmetic
from vinejax.tools.sets import sets_mode
from vinejax.tools.sets.set_table import difference_of, markdown, rewards_by_problem, table_record
from vinejax.tools.sets.set_tasks import AnswerRows, SetTask
from vinejax.tools.sets.sets_mode import evaluate_sets


@pytest.fixture
def run(finished_run: cases.Run, tmp_path: Path) -> Path:
    shutil.copytree(finished_run.workdir, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two sets of problems that the run's model can read, and solve now and then."""
    problems = Arithmetic().load("train")[:9]
    rows = [{"question": p.question, "answer": p.answer} for p in problems]
    monkeypatch.setattr(AnswerRows, "answer", lambda task, text: Arithmetic().answer(text))
    gsm8k, minerva = tmp_path / "gsm8k.jsonl", tmp_path / "minerva.jsonl"
    gsm8k.write_text("".join(json.dumps(row) + "\n" for row in rows[:6]))
    long = {"question": "1" * 30, "answer": "1"}
    rows = [row | {"answer": Arithmetic().answer(row["answer"])} for row in rows[6:]] + [long]
    minerva.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"gsm8k={gsm8k},minerva={minerva}"


def test_an_interrupted_evaluation_goes_on_with_the_next_set(
    run: Path, sets: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The first call ends within the second set, and the second call samples that set alone."""
    sampled, metrics_of = [], sets_mode.metrics_of

    def noted(session: Any, solved: Any) -> dict[str, float]:
        sampled.append(session.task.name)
        if len(sampled) == 3:
            raise KeyboardInterrupt
        return metrics_of(session, solved)

    monkeypatch.setattr(sets_mode, "metrics_of", noted)
    with pytest.raises(KeyboardInterrupt):
        evaluate_sets(cases.config(), run, sets)
    assert sorted(x.name for x in (run / "eval/sets").iterdir()) == ["gsm8k.json", "gsm8k.jsonl"]
    assert not (run / "eval/sets.json").exists()
    record = evaluate_sets(cases.config(), run, sets)
    assert sampled == ["gsm8k", "gsm8k", "minerva", "minerva", "minerva"]
    printed = capsys.readouterr().out
    assert f"gsm8k: uses {run}/eval/sets/gsm8k.json\nminerva: 3 problems, 2 samples" in printed
    assert printed.endswith((run / "eval/sets.md").read_text())
    assert json.loads((run / "eval/sets.json").read_text()) == record
    assert (record["start"], record["result"], record["comparisons"]) == (
        "warmup",
        "checkpoints/3",
        2,
    )
    assert record["sets"]["minerva"]["left_out"] == ["test/3"]
    for name in ("gsm8k", "minerva"):
        rows = cases.read_lines(run / f"eval/sets/{name}.jsonl")
        found = record["sets"][name]
        assert found["problems"] == len(rows) and found["samples"] == 2
        rewards = {
            policy: {row["problem_id"]: [x["reward"] for x in row[policy]] for row in rows}
            for policy in ("start", "result")
        }
        for policy, by_problem in rewards.items():
            mean = np.mean([np.equal(x, 1.0).mean() for x in by_problem.values()])
            assert found[policy]["pass_at_1"] == pytest.approx(mean)
        paired = paired_interval(rewards["result"], rewards["start"])
        assert found["difference"] == paired._asdict()
    assert record["sets"]["gsm8k"]["result"]["pass_at_1"] > 0


def test_a_fault_of_the_data_comes_before_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sets_mode, "open_session", lambda *_, **__: pytest.fail("loads the model"))
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"question": "1+1"}) + "\n")
    with pytest.raises(UserError, match=f"gsm8k: {file}:1: column 'answer' is missing"):
        evaluate_sets(cases.config(), tmp_path / "run", f"gsm8k={file}")
    assert not (tmp_path / "run").exists()


def test_without_a_checkpoint_there_is_only_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sets_mode, "find_trained", lambda *_: None)
    session = stand_in(
        Session,
        workdir=epath.Path("runs/new"),
        cfg=cases.config(model={"path": "folder"}),
        load_reference=dict,
    )
    policies = sets_mode.policies_of(session)
    assert policies.weights == {"start": {}}
    assert policies.sources == {"start": "folder", "result": None}
    assert capsys.readouterr().out == "runs/new: holds no checkpoint; evaluates the start\n"


def test_a_record_counts_only_for_what_it_was_made_of(tmp_path: Path):
    source = stand_in(SetTask, name="svamp")
    folder, wanted = epath.Path(tmp_path), sets_mode.PromptedSet(source, [], [], "same")
    file = tmp_path / "sets" / "svamp.json"
    assert sets_mode.known_record(folder, wanted) is None
    file.parent.mkdir()
    for text in ('{"digest": "other"}', "[]", "{", ""):
        file.write_text(text)
        assert sets_mode.known_record(folder, wanted) is None
    file.write_text('{"digest": "same"}')
    assert sets_mode.known_record(folder, wanted) == {"digest": "same"}


def test_a_record_is_made_again_with_other_limits_of_grading(monkeypatch: pytest.MonkeyPatch):
    """Programs that took longer than the limit have counted as wrong."""
    monkeypatch.setattr(sets_mode, "load_problems", lambda *_: ([], []))
    monkeypatch.setattr(sets_mode, "warn_unspelled", lambda *_: None)
    source = stand_in(SetTask, name="mbpp", task=stand_in(AnswerRows))

    def digest(**grader: Any) -> str:
        session = stand_in(Session, cfg=cases.config(grader=grader), tokenizer=None)
        return sets_mode.prompted_set(session, source, {"start": "warmup"}).digest

    first = digest(timeout_s=1.0)
    assert first == digest(timeout_s=1.0) == digest(timeout_s=1.0, workers=3)
    assert len({first, digest(timeout_s=5.0), digest(timeout_s=1.0, memory_mb=99)}) == 3


# --- the table


def row(**fields: Any) -> dict[str, Any]:
    accuracy = {"pass_at_1": 0.25, "pass_at_1_low": 0.125, "pass_at_1_high": 0.5}
    found = {"problems": 1319, "samples": 4, "start": accuracy, "result": None}
    return found | {"difference": None, "left_out": [], "unreadable": []} | fields


def test_the_interval_is_paired_and_its_clusters_are_problems():
    start = {f"p{i}": [float(i % 2)] * 3 for i in range(40)}
    assert difference_of(start, start) == {"difference": 0.0, "low": 0.0, "high": 0.0}
    better = {name: [1.0, 1.0, 1.0] for name in start}
    found = difference_of(start, better)
    assert found["difference"] == 0.5 and 0.3 < found["low"] < 0.4 and 0.6 < found["high"] < 0.7
    once = difference_of({k: x[:1] for k, x in start.items()}, better)
    assert (
        once == found
    )  # more samples of the same problems make no interval narrower by themselves
    assert rewards_by_problem(["a", "b"], np.eye(2)) == {"a": [1.0, 0.0], "b": [0.0, 1.0]}


def test_the_table():
    difference = {"difference": -0.05, "low": -0.1251, "high": 0.0}
    result = {"pass_at_1": 0.2, "pass_at_1_low": 0.0, "pass_at_1_high": 1.0}
    rows = {
        "gsm8k": row(result=result, difference=difference),
        "mbpp": row(result=result, difference=difference, left_out=["a"], unreadable=["b", "c"]),
    }
    record = table_record({"start": "folder", "result": "best/20"}, rows)
    table, policies, *notes = markdown(record).strip().split("\n\n")
    assert table.splitlines()[2] == (
        "| gsm8k | 1,319 | 4 | 25.0 (12.5 to 50.0) | 20.0 (0.0 to 100.0) | −5.0 (−12.5 to 0.0) |"
    )
    assert len(table.splitlines()) == 4
    assert policies == (
        "Start: folder. Result: best/20. 2 comparisons, each with its own 95% interval; none is "
        "corrected for the others."
    )
    assert len(notes) == 2 and all(note.startswith("mbpp: ") for note in notes)
    assert notes[0].endswith(": 1.") and notes[1].endswith("cannot be read: 2.")


def test_the_table_of_a_start_alone():
    text = markdown(table_record({"start": "folder", "result": None}, {"svamp": row()}))
    assert "| 25.0 (12.5 to 50.0) | – | – |" in text
    assert "Result: there is no checkpoint. 0 comparisons." in text
