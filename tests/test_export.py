"""`--mode=export`: which checkpoint, and that what it writes is the policy itself."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers.model_oracles import Model

from vinejax.errors import ConfigError, ModelError, WorkdirError
from vinejax.export import export_run
from vinejax.model.hf.weights import load_pretrained, save_pretrained
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.runtime.workdir import check_workdir, record_run
from vinejax.settings import Config, ModelConfig
from vinejax.types import RunState, TrainState


def times(params: dict, factor: float) -> dict:
    return jax.tree.map(lambda x: x * factor, params)


@pytest.fixture
def run(tiny: Model, tmp_path: Path) -> tuple[Config, Path]:
    """A workdir with a checkpoint of iteration 7, weights times 7, started from a model folder."""
    start, workdir = tmp_path / "start", tmp_path / "run"
    save_pretrained(start, *tiny)
    (start / "generation_config.json").write_text('{"eos_token_id": [1, 5]}')
    cfg = Config(model=ModelConfig(path=str(start)))
    record_run(cfg, check_workdir(cfg, workdir))
    with Checkpoints(workdir / "checkpoints", keep=2) as checkpoints:
        params = times(tiny.params, 7)
        state = RunState(TrainState(jax.numpy.int32(7), params, {}))
        checkpoints.save(7, state, {"best_accuracy": 0.5})
    return cfg, workdir


def test_without_a_best_the_newest_is_exported(run, tiny, capsys):
    cfg, workdir = run
    folder = export_run(cfg, workdir)
    assert folder == check_workdir(cfg, workdir) / "export"
    assert capsys.readouterr().out == f"checkpoints/7 is now in {workdir}/export\n"
    model, params, tokenizer = load_pretrained(folder)
    jax.tree.map(np.testing.assert_array_equal, params, times(tiny.params, 7))
    assert model.cfg == dataclasses.replace(tiny.decoder.cfg, eos_ids=(1, 5))
    assert (folder / "generation_config.json").read_text() == '{"eos_token_id": [1, 5]}'
    assert tokenizer.get_vocab() == tiny.tokenizer.get_vocab()


def test_the_best_is_exported_unless_the_last_is_asked_for(run, tiny):
    cfg, workdir = run
    with Checkpoints(workdir / "best", keep=1) as best:
        best.save_params(3, times(tiny.params, 3), {"pass_at_1": 0.5})
    for policy, factor in (("best", 3), ("last", 7), ("best", 3)):
        params = load_pretrained(export_run(cfg, workdir, policy))[1]
        jax.tree.map(np.testing.assert_array_equal, params, times(tiny.params, factor))


def test_what_cannot_be_exported(run, tiny, tmp_path):
    cfg, workdir = run
    with pytest.raises(WorkdirError, match="holds no checkpoint to export"):
        export_run(cfg, tmp_path / "empty")
    assert not (tmp_path / "empty").exists()
    other = dataclasses.replace(cfg, seed=3)
    with pytest.raises((WorkdirError, ConfigError), match="seed was 42 and is now 3"):
        export_run(other, workdir)
    (tmp_path / "start" / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="tokenizer.json is missing"):
        export_run(cfg, workdir)
    assert not (workdir / "export").exists()
