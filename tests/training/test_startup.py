"""Tests the errors of a start, one line each, before anything is written."""

import dataclasses
import datetime
import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from etils import epath
from helpers import loop_cases as cases
from helpers.applied import run_instead

from vinejax.core.errors import ConfigError, DataError, DivergedError, RoomError, WorkdirError
from vinejax.core.settings import Config, DataConfig, GraderConfig, TopologyConfig
from vinejax.core.types import Problem
from vinejax.grading import Grader
from vinejax.methods.known import find_method
from vinejax.model.hf.weights import load_pretrained, save_pretrained
from vinejax.runtime import clock
from vinejax.tasks.doors import DoorsTask
from vinejax.tasks.graded import GradedTask
from vinejax.tasks.prompts import encode_prompt
from vinejax.training import loop, startup
from vinejax.training.evaluate import evaluate_run
from vinejax.training.export import export_run
from vinejax.training.startup import open_session, prompted_problems

BAD = {0: None, 2: r"\frac{1}{", 3: r"\frac{" + 50 * "1"}  # golds of the first rows of each split


@pytest.fixture(scope="module")
def run(finished_run: cases.Run) -> cases.Run:
    return finished_run


def contents(workdir: Path) -> dict[str, bytes]:
    files = (path for path in workdir.rglob("*") if path.is_file())
    return {str(path.relative_to(workdir)): path.read_bytes() for path in files}


def refusal(kind: type[Exception], cfg: Config, workdir: Path) -> str:
    with pytest.raises(kind) as error:
        loop.train(cfg, workdir)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_another_configuration_is_refused(run):
    before = contents(run.workdir)
    message = refusal(WorkdirError, cases.config(values={"k": 4}), run.workdir)
    assert "values.k was 3 and is now 4" in message
    assert contents(run.workdir) == before


def test_prompts_that_are_trained_on_are_said(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """Prompts of validation and test that are in train, too, are counted in a warning."""
    load = cases.FewProblems.load

    def overlapping(task: Any, split: str) -> list[Problem]:
        found = load(task, split)  # pyright: ignore[reportArgumentType]
        if split == "test":
            question = load(task, "train")[3].question
            found[1] = dataclasses.replace(found[1], question=question)
        return found

    cfg = cases.config(model={"path": str(run.workdir / "warmup")})
    open_session(cfg, tmp_path).__exit__()
    assert "are in train, too" not in capsys.readouterr().out
    monkeypatch.setattr(cases.FewProblems, "load", overlapping)
    open_session(cfg, tmp_path).__exit__()
    name = load(cases.FewProblems(), "test")[1].id
    rule = "so accuracy there is not that on new ones"
    said = f"warning: test: 1 of 6 prompts are in train, too, {rule}: {name}\n"
    assert said in capsys.readouterr().out


class OnePrompt(DoorsTask):
    def prompt(self, problem: Problem) -> str:
        return "0000"


@pytest.mark.parametrize("task", [DoorsTask(), OnePrompt()])
def test_problems_of_environments_may_have_one_prompt(
    task: DoorsTask, capsys: pytest.CaptureFixture
):
    with GradedTask(task, GraderConfig()) as graded:
        found, _ = prompted_problems(
            Config(), find_method("grpo"), graded, task.tokenizer(), ("train", "validation")
        )
    assert len(found["validation"]) == len(task.load("validation"))
    assert "warning" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_with_a_row_of_meshes_goes_on(run, tmp_path: Path):
    """The row sets slots and microbatch, here to those of `config()`; `--mode=train` twice, then
    eval and export. That another row may follow is said in test_workdir.py."""
    fields = {"ppo": {"microbatch": None}, "rollout": {"slots": 99}, "eval": {"every": 0}}
    cfg = cases.config(model={"path": str(run.workdir / "warmup")}, **fields)
    row = TopologyConfig(slots=32, microbatch=4)
    cfg = dataclasses.replace(cfg, meshes={"cpu:1": row}, iterations=1)
    loop.train(cfg, tmp_path)
    recorded = json.loads((tmp_path / "config.json").read_text())["config"]
    assert (recorded["rollout"]["slots"], recorded["ppo"]["microbatch"]) == (32, 4)
    assert (tmp_path / "episodes/0.jsonl").read_bytes() == (
        run.workdir / "episodes/0.jsonl"
    ).read_bytes()
    cfg = dataclasses.replace(cfg, iterations=2)
    loop.train(cfg, tmp_path)
    assert evaluate_run(cfg, tmp_path)["source"] == "the start"  # which no policy was better than
    assert (export_run(cfg, tmp_path)[0] / "model.safetensors").exists()


def test_one_process_trains_in_a_workdir_and_others_may_read_it(run, tmp_path: Path):
    """The second start fails before it writes; an evaluation leaves the run's record unchanged."""
    cfg = cases.config(iterations=0, model={"path": str(run.workdir / "warmup")}, eval={"every": 0})
    with open_session(cfg, tmp_path, trains=True):
        before = contents(tmp_path)
        assert f"{tmp_path}: process {os.getpid()} on host" in refusal(WorkdirError, cfg, tmp_path)
        assert contents(tmp_path) == before
        few = dataclasses.replace(cfg, eval=dataclasses.replace(cfg.eval, problems=1))
        assert evaluate_run(few, tmp_path)["problems"] == 1
        assert contents(tmp_path).items() >= before.items()
    loop.train(cfg, tmp_path)


def test_memory_without_room_and_weights_that_diverged_are_one_line(run, tmp_path: Path):
    start = run.workdir / "warmup"
    cfg = cases.config(model={"path": str(start)}, rollout={"memory_gib": 2**-20})
    message = refusal(RoomError, cfg, tmp_path / "run")
    assert message.startswith("memory_gib = 9.54e-07 does not hold one trunk of ")
    assert "rollout.memory_gib" in message
    model, params, tokenizer = load_pretrained(start)
    params["norm"]["scale"] *= 1e30  # finite, and the logits are not
    save_pretrained(tmp_path / "large", model, params, tokenizer)
    cfg = cases.config(model={"path": str(tmp_path / "large")})
    message = refusal(DivergedError, cfg, tmp_path / "diverged")
    assert "are not finite" in message and "diverged; lower optimizer.learning_rate, wh" in message


def test_more_prompts_than_problems(run, tmp_path: Path):
    fields = {"rollout": {"prompts": 13}, "model": {"path": str(run.workdir / "warmup")}}
    assert "rollout.prompts = 13: the train split has only 12" in refusal(
        ConfigError, cases.config(**fields), tmp_path
    )
    with open_session(cases.config(method="sft", **fields), tmp_path) as session:  # draws none
        assert len(session.problems["train"]) == 12


@pytest.mark.parametrize(
    "section, field", [("data", "max_prompt_tokens"), ("sample", "max_tokens")]
)
def test_no_room_in_the_context(run, tmp_path: Path, section: str, field: str):
    """The context is that of a loaded model, or of one that would be trained first."""
    for path in (str(run.workdir / "warmup"), ""):
        cfg = cases.config(model={"path": path}, **{section: {field: 48}})
        message = refusal(ConfigError, cfg, tmp_path / "run")
        assert f"{section}.{field} = 48: the model's context is 48" in message
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "train.jsonl: no rows"),
        ('{"question": "1+1?", "answer": "#### 2"}\n{"question"\n', "train.jsonl:2: not JSON"),
        ('{"question": "1+1?"}\n', "train.jsonl:1: field 'answer' is missing"),
    ],
)
def test_bad_data_is_one_line(run, tmp_path: Path, text: str, message: str):
    (tmp_path / "train.jsonl").write_text(text)
    cfg = cases.config(
        data={"task": "vinejax.tasks.gsm8k", "path": str(tmp_path)},
        model={"path": str(run.workdir / "warmup")},
    )
    assert message in refusal(DataError, cfg, tmp_path / "run")


def test_the_time_that_a_template_asks_for_is_that_of_the_first_start(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model, workdir = tmp_path / "model", tmp_path / "run"
    shutil.copytree(run.workdir / "warmup", model)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings["chat_template"] = "{{ strftime_now('%M%S') }}{{ messages[0].content }}"
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    (model / "chat_template.jinja").unlink(missing_ok=True)
    cfg = cases.config(model={"path": str(model)}, data={"chat_template": True})

    def prompts_at(now: str) -> list[list[int]]:
        class Stopped(datetime.datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return datetime.datetime.fromisoformat(now)

        monkeypatch.setattr(clock.datetime, "datetime", Stopped)
        with open_session(cfg, workdir, trains=True) as session:
            return [ids for _, ids in session.problems["test"]]

    first = prompts_at("2026-01-01T10:20:30")
    assert (workdir / clock.FILE).read_text() == "2026-01-01T10:20:30\n"
    assert prompts_at("2027-02-03T11:44:55") == first
    (workdir / clock.FILE).write_text("yesterday")
    with pytest.raises(WorkdirError, match="prompt_time: holds no time; put a copy of it back"):
        prompts_at("2027-02-03T11:44:55")
    (workdir / clock.FILE).unlink()
    assert prompts_at("2027-02-03T11:44:55") != first


def test_a_stop_id_that_the_model_lacks_is_refused(run, tmp_path: Path):
    model = {"path": str(run.workdir / "warmup")}
    cfg = cases.config(model=model, sample={"stop_ids": (3, 999)})
    rule = r"sample.stop_ids = (3, 999): the model's token ids are below "
    assert refusal(ConfigError, cfg, tmp_path / "run").startswith(rule)


def test_long_prompts_are_left_out_and_listed(
    run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    model = {"path": str(run.workdir / "warmup")}
    cfg = cases.config(data={"max_prompt_tokens": 12}, rollout={"prompts": 1}, model=model)
    session = open_session(cfg, tmp_path)
    dropped = json.loads((tmp_path / "dropped_problems.json").read_text())
    printed, task = capsys.readouterr().out, cases.FewProblems()
    for split, size in cases.SIZES.items():
        lengths = {
            problem.id: len(encode_prompt(session.tokenizer, task.prompt(problem), False))
            for problem in task.load(split)
        }
        reason = "the prompt has more than data.max_prompt_tokens = 12 tokens"
        assert dropped[split] == [
            {"id": name, "reason": reason, "left_out": True}
            for name, length in lengths.items()
            if length > 12
        ]
        kept = [problem.id for problem, _ in session.problems[split]]
        assert kept == [name for name, length in lengths.items() if length <= 12]
        if dropped[split]:
            assert f"{split}: {len(dropped[split])} of {size} prompts have more than" in printed
    assert dropped["train"] and session.problems["train"]
    open_session(cfg, tmp_path, splits=("test",))
    assert json.loads((tmp_path / "dropped_problems.json").read_text()) == dropped


class Graded(cases.FewProblems):
    """A task whose answers the grader compares, with a few golds that nothing can read."""

    def gold(self, problem: Problem) -> str | None:
        return BAD.get(int(problem.id.split("/")[1]), self.answer(problem.answer))

    def rewards(self, items: Sequence[tuple[Problem, str]], grader: Grader) -> list[float]:
        pairs = [(self.answer(response), self.gold(problem) or "") for problem, response in items]
        return [float(verdict.correct) for verdict in grader.grade_many(pairs)]


class Hopeless(Graded):
    def gold(self, problem: Problem) -> str | None:
        return None


def make(data: DataConfig) -> Graded:
    return Hopeless() if data.path == "hopeless" else Graded()


def graded_config(run: cases.Run, path: str = "", **sections: Any) -> Config:
    data = {"task": "test_startup", "path": path}
    model = {"path": str(run.workdir / "warmup")}
    return cases.config(data=data, model=model, **sections)


@pytest.mark.parametrize("unreadable, left", [("drop", 9), ("keep", 12)])
def test_golds_that_cannot_be_read_are_listed_and_not_trained_on(
    run, tmp_path: Path, capsys: pytest.CaptureFixture[str], unreadable: str, left: int
):
    cfg = graded_config(run, grader={"unreadable": unreadable})
    with open_session(cfg, tmp_path) as session:
        sizes = [len(problems) for problems in session.problems.values()]
    assert sizes == [left, 4, 6]
    kept = {problem.id for problem, _ in session.problems["train"]}
    assert ("train/2" in kept) == (unreadable == "keep") and "train/1" in kept
    listed = json.loads((tmp_path / "dropped_problems.json").read_text())
    printed = capsys.readouterr().out.splitlines()
    for split, size, line in zip(cases.SIZES, cases.SIZES.values(), printed, strict=True):
        out = split == "train" and unreadable == "drop"
        reason = {"reason": "the gold cannot be read", "left_out": out}
        assert listed[split] == [{"id": f"{split}/{i}", "gold": BAD[i]} | reason for i in BAD]
        assert line == (
            f"{split}: 3 of {size} golds cannot be read and are {'left out' if out else 'kept'}: "
            f"{split}/0 without one, {split}/2 {BAD[2]!r}, {split}/3 {str(BAD[3])[:40]!r}: "
            "dropped_problems.json"
        )
    with open_session(cfg, tmp_path / "looked", splits=("train",), records=False):
        pass  # as --mode=doctor, which writes nothing
    (looked,) = capsys.readouterr().out.splitlines()
    assert looked == printed[0].removesuffix(": dropped_problems.json")
    assert not (tmp_path / "looked" / "dropped_problems.json").exists()


def test_the_start_prints_a_note_for_each_field_without_effect(
    run, tmp_path: Path, capsys: pytest.CaptureFixture
):
    """`env.observed` does not make rows longer for a task without an environment."""
    idle = {
        "env": {"observed": 99},
        "grader": {"workers": 3},
        "data": {"system": "Be brief.", "template_vars": ("brief=True",)},
    }
    cfg = cases.config(model={"path": str(run.workdir / "warmup")}, **idle)
    with open_session(cfg, tmp_path / "eval") as session:
        assert session.cfg.env.observed == 0
    assert "note: " not in capsys.readouterr().out
    with open_session(cfg, tmp_path / "run", trains=True):
        lines = capsys.readouterr().out.splitlines()
    notes = [line.removeprefix("note: ") for line in lines if line.startswith("note: ")]
    noted = [note.split(" has no effect: ")[0] for note in notes]
    fields = {"env.observed", "grader.workers", "data.system", "data.template_vars"}
    assert set(noted) == fields and len(noted) == len(fields)
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert recorded["env"]["observed"] == 99


def test_no_gold_that_can_be_read(run, tmp_path: Path):
    message = refusal(DataError, graded_config(run, "hopeless"), tmp_path / "run")
    assert message == "arithmetic train: none of the golds of its 12 problems can be read"
    assert not (tmp_path / "run").exists()
    record = evaluate_run(graded_config(run, "hopeless"), tmp_path / "eval")
    assert record["problems"] == 6 and record["pass_at_1"] == 0.0


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[Grader]:
    graders, close = [], Grader.close

    def noted(grader: Grader) -> None:
        graders.append(grader)
        close(grader)

    monkeypatch.setattr(Grader, "close", noted)
    return graders


def test_the_grader_ends_with_the_run(run, tmp_path: Path, closed: list, monkeypatch: Any):
    cfg = graded_config(run, iterations=1, eval={"every": 0}, log={"vines": 12})
    loop.train(cfg, tmp_path / "run")
    assert len(closed) == 1
    (line,) = [x for x in cases.read_lines(tmp_path / "run/metrics.jsonl") if x["stage"] == "train"]
    assert (line["grader/timeouts"], line["grader/errors"]) == (0, 0)
    # What the iteration's two phases drew and the budget did not cut; not the evaluations'.
    rows = cases.read_lines(tmp_path / "run/episodes/0.jsonl")
    states = {
        (row["problem_id"], "".join(step["text"] for step in row["steps"][:c])): step
        for row in rows
        for c, step in enumerate(row["steps"])
    }
    finishes = [x["finish"] for step in states.values() for x in step["continuations"]]
    ended = sum(row["finished"] for row in rows) + sum(f != "length" for f in finishes)
    assert line["grader/pairs"] == ended > 0
    assert 0 < line["timing_s/grade"] < line["timing_s/rollout"] + line["timing_s/value"]
    evaluate_run(cfg, tmp_path / "run")
    assert len(closed) == 2

    def dying(*_: Any):
        raise KeyboardInterrupt

    run_instead(monkeypatch, dying)
    with pytest.raises(KeyboardInterrupt):
        loop.train(cfg, tmp_path / "dying")
    assert len(closed) == 3
    refusal(ConfigError, graded_config(run, rollout={"prompts": 13}), tmp_path / "refused")
    assert len(closed) == 4


@pytest.mark.slow
def test_a_warm_up_records_the_configuration_as_it_was_set(tmp_path: Path):
    """An evaluation of a workdir without a run warms up, and the same command goes on there."""
    cfg = cases.config(iterations=1, sft={"steps": 1}, eval={"every": 0})
    evaluate_run(cfg, tmp_path / "run")
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert recorded["values"]["positions"] == recorded["ppo"]["whiten"] == "method"
    evaluate_run(cfg, tmp_path / "run")
    loop.train(cfg, tmp_path / "run")


def test_a_resume_warns_if_the_run_that_it_began_from_has_another_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    cfg, workdir, chosen = cases.config(model={"path": "runs/a"}), epath.Path(tmp_path), "best/2"
    monkeypatch.setattr(startup, "chosen_checkpoint", lambda path: chosen)

    def printed_at_start() -> str:
        startup.record_session(cfg, workdir, {}, {}, anew=True)
        return capsys.readouterr().out

    assert not printed_at_start()
    (workdir / "checkpoints/1").mkdir(parents=True)
    assert not printed_at_start()
    chosen = "best/7"
    for _ in range(2):  # at each resume
        line = "began from best/2 of the run runs/a, which has chosen best/7 since"
        assert line in printed_at_start()
    assert json.loads((workdir / "config.json").read_text())["start"] == "best/2"


@pytest.mark.parametrize("change", ["order", "id", "question", "answer", "prompt", "more"])
def test_a_resume_warns_of_other_data_until_the_old_is_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str
):
    cfg, workdir = cases.config(), epath.Path(tmp_path)
    first, second = ((Problem(name, f"{name}?", "1"), [2, 3]) for name in "ab")
    data = {
        "order": [second, first],
        "prompt": [first, (second[0], [2, 4])],
        "more": [first, second, (Problem("c", "c?", "1"), [2, 3])],
    }
    for field in ("id", "question", "answer"):
        data[field] = [first, (dataclasses.replace(second[0], **{field: "2"}), [2, 3])]

    def warnings(train: list[Any]) -> list[str]:
        startup.record_session(cfg, workdir, {"train": train, "test": [first]}, {}, anew=True)
        return capsys.readouterr().out.splitlines()

    assert warnings(data[change]) == []
    assert warnings([first, second]) == []  # no checkpoint: the run begins with these
    (workdir / "checkpoints/1").mkdir(parents=True)
    for _ in range(2):  # at each resume
        (line,) = warnings(data[change])
        numbers = f"train had 2 problems, .*, and now has {len(data[change])} problems, "
        assert re.search(numbers, line)
    assert warnings([first, second]) == []


def test_all_hosts_look_at_the_run_that_a_run_begins_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """They read checkpoints together, so a host that does not write must not leave this out."""
    cfg, looked, recorded = cases.config(model={"path": "runs/a"}), [], True
    monkeypatch.setattr(startup, "is_writer", lambda: False)
    monkeypatch.setattr(startup, "chosen_checkpoint", lambda path: looked.append(path) or "best/2")
    monkeypatch.setattr(startup, "exchange", lambda value: [recorded, value])
    startup.record_session(cfg, epath.Path(tmp_path), {}, {"train": [{"id": "a"}]}, anew=True)
    startup.record_session(cfg, epath.Path(tmp_path), {}, {}, anew=False)
    assert looked == ["runs/a"]  # an evaluation leaves the record of a run, and so its start
    recorded = False
    startup.record_session(cfg, epath.Path(tmp_path), {}, {}, anew=False)
    assert looked == 2 * ["runs/a"]
    assert not contents(tmp_path) and not capsys.readouterr().out
