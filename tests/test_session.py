"""What a run refuses to start with, in one line and before it has written anything."""

import json
from pathlib import Path

import loop_cases as cases
import pytest

from vinejax import train as loop
from vinejax.config import Config
from vinejax.errors import ConfigError, DataError, WorkdirError
from vinejax.session import open_session
from vinejax.tasks.prompts import encode_prompt


@pytest.fixture(scope="module")
def run() -> cases.Run:
    return cases.finished_run()


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


def test_more_prompts_than_problems(run, tmp_path: Path):
    cfg = cases.config(rollout={"prompts": 13}, model={"path": str(run.workdir / "warmup")})
    assert "rollout.prompts = 13: the train split has only 12" in refusal(
        ConfigError, cfg, tmp_path
    )


@pytest.mark.parametrize(
    "section, field", [("data", "max_prompt_tokens"), ("sample", "max_tokens")]
)
def test_no_room_in_the_context(run, tmp_path: Path, section: str, field: str):
    """Of a model that is there, or of one that would be trained first."""
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


def test_long_prompts_are_left_out_and_listed(
    run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    model = {"path": str(run.workdir / "warmup")}
    cfg = cases.config(data={"max_prompt_tokens": 12}, rollout={"prompts": 1}, model=model)
    session = open_session(cfg, tmp_path)
    dropped = json.loads((tmp_path / "dropped_prompts.json").read_text())
    printed, task = capsys.readouterr().out, cases.FewProblems()
    for split, size in cases.SIZES.items():
        lengths = {
            problem.id: len(encode_prompt(session.tokenizer, task.prompt(problem), False))
            for problem in task.load(split)
        }
        assert dropped[split] == [name for name, length in lengths.items() if length > 12]
        kept = [problem.id for problem, _ in session.problems[split]]
        assert kept == [name for name, length in lengths.items() if length <= 12]
        if dropped[split]:
            assert f"{split}: {len(dropped[split])} of {size} prompts have more than" in printed
    assert dropped["train"] and session.problems["train"]
