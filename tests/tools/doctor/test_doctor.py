"""Real looks: sound set-ups are not stopped, broken ones are, and a run stays what it was."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import pytest
from etils import epath
from helpers import data
from helpers import loop_cases as cases
from helpers.paths import CONFIGS

from vinejax.config.load import from_dict, load
from vinejax.core.errors import UserError
from vinejax.core.settings import Config, DataConfig, with_fields
from vinejax.core.types import Problem
from vinejax.model.hf.weights import load_pretrained
from vinejax.runtime.checkpoint import restore_policy
from vinejax.runtime.compiles import num_compiles
from vinejax.tasks import arithmetic
from vinejax.tools.doctor.doctor_mode import examine
from vinejax.training import loop

TINY = str(CONFIGS / "tiny.py")
STORIES = {"model.path": str(data.path("stories260K/hf"))}
GSM8K = {"data.path": str(data.path("gsm8k")), **STORIES}
TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
LONGER = {"sample.stop": (), "sample.max_tokens": 192}
WARM = {"sft.steps": 40}  # a policy that can write some responses in the form of the task
SOUND: dict[str, tuple[str, dict[str, Any]]] = {
    "arithmetic": (TINY, {}),
    "adapters": (str(CONFIGS / "tiny_grpo.py"), {"model.lora_rank": 4}),
    "a reward function": (TINY, {"reward.functions": ("task", f"{__name__}.brief")}),
    "bifurcation": (str(CONFIGS / "bifurcation.py"), {}),
    "free_order": (str(CONFIGS / "free_order.py"), {}),
    "countdown": (str(CONFIGS / "countdown.py"), {}),
    "GSM8K and a model that never solves it": (str(CONFIGS / "gsm8k_tiny.py"), GSM8K),
    "an environment": (str(CONFIGS / "doors.py"), WARM),
    "code": (str(CONFIGS / "contrib/programs.py"), WARM),
    "supervised training": (str(CONFIGS / "tiny_sft.py"), {}),
}


def brief(response: str) -> float:
    return -0.01 * len(response)


class Silent(arithmetic.Arithmetic):
    """A task whose reward forgot to convert: a text is no number."""

    def reward(self, problem: Problem, response: str) -> float:
        return float(self.answer(response) == int(self.answer(problem.answer) or 0))


def make(data: DataConfig) -> Silent:
    return Silent()


def config_of(path: str, **fields: Any) -> Config:
    small = {"rollout.prompts": 8, "rollout.per_prompt": 2, "rollout.slots": 16}
    return with_fields(from_dict(load(path)), small | fields)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_set_up_is_not_stopped(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path, fields = SOUND[name]
    found = examine(config_of(path, **fields), tmp_path)
    assert not any(finding.stops for finding in found)
    shown = capsys.readouterr().out
    assert "doctor: 2 responses to each of 8 train problems, by the start" in shown
    assert not (tmp_path / "config.json").exists() or fields == WARM  # warm-ups are recorded


@pytest.mark.slow
def test_a_chat_about_rows_of_ones_own_is_not_stopped(tmp_path: Path):
    model, rows = tmp_path / "model", tmp_path / "rows.jsonl"
    shutil.copytree(STORIES["model.path"], model)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    rows.write_text("".join(json.dumps(row) + "\n" for row in data.rows("gsm8k/train")[:40]))
    fields = {"data.task": "vinejax.tasks.table", "data.path": str(rows), "data.solution": "answer"}
    chat = {"data.chat_template": True, "data.system": "Be brief.", "model.path": str(model)}
    cfg = config_of(str(CONFIGS / "gsm8k_tiny.py"), **fields | chat | LONGER)
    assert not any(finding.stops for finding in examine(cfg, tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"sample.stop": ("####",)}, "sample.stop = ('####',) ends it too early, after"),
        ({"sample.stop": ("\n",)}, "sample.stop = ('\\n',) ends it too early, after ''"),
        ({"data.task": __name__}, "of the data's own solutions earn less than 1 (the first 0)"),
    ],
)
def test_a_broken_set_up_is_stopped_in_one_line(
    fields: dict[str, Any], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(UserError) as error:
        examine(config_of(TINY, **fields), tmp_path)
    assert str(error.value).startswith("doctor: ") and line in str(error.value)
    assert "\n" not in str(error.value) and "doctor: 2 responses" in capsys.readouterr().out


@pytest.mark.slow
def test_a_budget_below_the_datas_own_solutions_is_named(tmp_path: Path):
    (found,) = examine(config_of(TINY, **{"sample.max_tokens": 4}), tmp_path)
    assert "all 16 responses are cut at the budget of sample.max_tokens = 4" in found.line
    assert "so would be all of the data's own solutions, of 8 tokens" in found.line


@pytest.mark.slow
def test_a_run_that_cannot_work_leaves_its_workdir_free(
    start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The same workdir then takes the corrected settings, or the same ones without the doctor."""
    fields: dict[str, Any] = {"model": {"path": start}, "eval": {"every": 0}, "iterations": 1}
    broken = cases.config(data={"task": __name__}, **fields)
    with pytest.raises(UserError, match=r"earn less than 1 .*before_training=False trains all"):
        loop.train(broken, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    capsys.readouterr()
    loop.train(cases.config(**fields), tmp_path)
    shown = capsys.readouterr().out
    assert shown.startswith("doctor: 2 responses to each of 8 train problems, by the start")
    assert "vineppo on helpers.loop_cases" in shown
    loop.train(cases.config(**fields | {"iterations": 2}), tmp_path)  # resumes
    assert "doctor: 2 responses" not in capsys.readouterr().out
    off = cases.config(data={"task": __name__}, doctor={"before_training": False}, **fields)
    loop.train(off, tmp_path / "off")
    assert "doctor: 2 responses" not in capsys.readouterr().out
    looked = examine(cases.config(**fields), tmp_path)  # at the checkpoint
    assert "by checkpoints/2, at temperature 0.8" in capsys.readouterr().out
    assert not any(finding.stops for finding in looked)


@pytest.mark.slow
def test_a_run_is_the_same_with_it_and_compiles_at_most_one_program_more(
    start: str, tmp_path: Path
):
    counts = {}
    for is_on in (True, False):
        fields: dict[str, Any] = {"doctor": {"before_training": is_on}, "model": {"path": start}}
        jax.clear_caches()
        before = num_compiles()
        loop.train(cases.config(**fields), tmp_path / str(is_on))
        counts[is_on] = num_compiles() - before
    assert counts[True] <= counts[False] + 1
    on, off = tmp_path / "True", tmp_path / "False"
    records = [cases.read_lines(folder / "metrics.jsonl") for folder in (on, off)]
    assert cases.without_clock(records[0]) == cases.without_clock(records[1])
    for iteration in range(3):
        name = f"episodes/{iteration}.jsonl"
        assert (on / name).read_bytes() == (off / name).read_bytes()
    _, like, _ = load_pretrained(start)
    cases.assert_equal(*(restore_policy(epath.Path(x) / "checkpoints", like)[0] for x in (on, off)))
