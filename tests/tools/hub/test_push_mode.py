"""`--mode=export --push`: a whole run's model and card arrive at a stand-in of the hub."""

import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath
from helpers.model_oracles import Model
from helpers.tools.hub_stand_in import TOKEN, Fault, Hub, connected_hub
from huggingface_hub import ModelCard, constants

from vinejax.core.accessories import contributed
from vinejax.core.errors import UserError
from vinejax.core.settings import Config, ModelConfig
from vinejax.core.types import RunState, TrainState
from vinejax.model.hf.weights import load_pretrained, save_pretrained
from vinejax.records.read import JsonObject
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.runtime.workdir import check_workdir, record_run
from vinejax.tools.hub import upload
from vinejax.tools.hub.push_mode import example_of, export_and_push, local_files

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

NAME = "org/model"
METRICS = [
    {"stage": "eval", "iteration": 0, "eval/pass_at_1": 0.25},
    {"stage": "train", "iteration": 0, "reward/mean": 0.25},
    {"stage": "train", "iteration": 6, "reward/mean": 0.75},
    {"stage": "eval", "iteration": 7, "eval/pass_at_1": 0.75},
]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with connected_hub(monkeypatch) as hub:
        yield hub


@pytest.fixture
def run(tiny: Model, tmp_path: Path) -> tuple[Config, Path]:
    """A configuration and a workdir with a checkpoint of 7 iterations."""
    start, workdir = tmp_path / "start", tmp_path / "run"
    save_pretrained(start, *tiny)
    cfg = Config(model=ModelConfig(path=os.fspath(start)))
    record_run(cfg, check_workdir(cfg, workdir))
    with Checkpoints(workdir / "checkpoints", keep=2) as checkpoints:
        state = RunState(TrainState(jax.numpy.int32(7), tiny.params, {}))
        checkpoints.save(7, state, {"best_accuracy": 0.5, "evaluated": 0})
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in METRICS))
    (workdir / "episodes").mkdir()
    (workdir / "episodes/0.jsonl").write_text(json.dumps({"prompt": "1+1="}) + "\n")
    return cfg, workdir


def test_what_is_pushed_is_the_folder(
    run: tuple[Config, Path], hub: Hub, tiny: Model, capsys: pytest.CaptureFixture[str]
):
    cfg, workdir = run
    folder = export_and_push(cfg, workdir, "last", NAME)
    (workdir / "export/model.safetensors.tmp").write_text("of an export that was killed")
    local = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert hub.files(NAME) == {k: x for k, x in local.items() if not k.endswith(".tmp")}
    out = capsys.readouterr().out
    assert f"pushed to {hub.url}/{NAME}, commit {hub.head(NAME)[:12]}\n" in out
    params = load_pretrained(os.fspath(folder))[1]
    jax.tree.map(np.testing.assert_array_equal, params, tiny.params)
    card = ModelCard(hub.files(NAME)["README.md"].decode())
    assert card.data.to_dict()["library_name"] == "transformers" and "prompt = '1+1='" in card.text
    assert "| validation | after 7 iterations | 75.0% |" in card.text
    assert hub.files(NAME)["training_curves.png"].startswith(b"\x89PNG")
    assert hub.messages == ["vineppo, 7 iterations, by VineJAX"]
    texts = b"".join(x for name, x in local.items() if name.endswith((".md", ".json", ".jinja")))
    assert os.fspath(workdir.parent).encode() not in texts and TOKEN.encode() not in texts
    # and once more, which changes nothing
    export_and_push(cfg, workdir, "last", NAME)
    assert "which had it already" in capsys.readouterr().out and len(hub.commits[NAME]) == 2


def test_only_prompts_that_anybody_may_read_are_shown():
    """A task or an environment of a user's may have private data without `data.path`."""
    episodes: dict[int, list[JsonObject]] = {0: [{"prompt": "1+1="}]}
    settings = {"data.task": "vinejax.tasks.arithmetic", "data.path": ""}
    assert example_of(episodes, settings) == "1+1=" and example_of({}, settings) == ""
    assert example_of(episodes, settings | {"data.path": "mine"}) == ""
    for task in ("sums", "/home/me/sums.py", "my.tasks", *contributed("TASKS")):
        assert example_of(episodes, settings | {"data.task": task}) == ""


def test_an_error_of_the_hub_keeps_the_export(
    run: tuple[Config, Path], hub: Hub, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(upload, "WAITS_S", ())
    hub.add(NAME, {"README.md": b"old"})
    hub.faults = [Fault("/commit/main", 500)]
    with pytest.raises(upload.HubError, match=f"the push to {NAME} failed: "):
        export_and_push(*run, "last", NAME)
    assert hub.files(NAME) == {"README.md": b"old"}
    assert (run[1] / "export/model.safetensors").exists()


def test_nothing_is_written_where_nothing_can_be_pushed(
    run: tuple[Config, Path], hub: Hub, monkeypatch: pytest.MonkeyPatch
):
    cfg, workdir = run
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
            export_and_push(cfg, workdir, "last", NAME)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(UserError, match=r"matplotlib: pip install 'vinejax\[hub\]'"):
            export_and_push(cfg, workdir, "last", NAME)
    assert not (workdir / "export").exists() and not hub.commits


def test_files_of_a_remote_folder_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("a.json", ".hidden", "b.safetensors.tmp"):
        (tmp_path / name).write_text(name)
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr("vinejax.tools.hub.push_mode.is_remote", lambda path: True)
    with local_files(epath.Path(tmp_path)) as files:
        (copy,) = files.values()
        assert set(files) == {"a.json"} and copy.read_text() == "a.json"
        assert copy.parent != tmp_path
    assert not copy.exists()
