"""Runs that train adapters: from the first iteration to the export."""

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.refusals import refuses

from vinejax.config.checks import check_config
from vinejax.core.settings import Config, ModelConfig
from vinejax.model.decoder import Params
from vinejax.model.hf.weights import load_pretrained
from vinejax.model.lora import abstract_adapters, merge_adapters, with_adapters
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.runtime.stopping import Stopped
from vinejax.training import loop
from vinejax.training.evaluate import evaluate_run
from vinejax.training.export import export_run
from vinejax.training.startup import open_session

LORA = {"lora_rank": 2, "lora_alpha": 4.0, "lora_targets": ("q", "v", "down")}


def config(start: str, **sections: Any) -> Config:
    fields: dict[str, Any] = {"optimizer": {"learning_rate": 1e-2}, "model": {"path": start} | LORA}
    return cases.config(**fields | {"eval": {"every": 0, "samples": 2}} | sections)


@pytest.fixture(scope="module")
def run(start: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two iterations; not to be changed."""
    workdir = tmp_path_factory.mktemp("run")
    loop.train(config(start, iterations=2), workdir)
    return workdir


def adapters_of(workdir: Path, start: str) -> Params:
    model = load_pretrained(start)[0]
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device),
        abstract_adapters(model, ModelConfig(lora_rank=2, lora_targets=LORA["lora_targets"])),
    )
    with Checkpoints(workdir / "checkpoints", keep=2) as checkpoints:
        return checkpoints.restore_params(2, like)[0]


@pytest.mark.slow
def test_adapters_are_all_that_is_trained_and_kept(run: Path, start: str):
    lines = cases.read_lines(run / "metrics.jsonl")
    assert [line["stage"] for line in lines] == ["test", "eval", "train", "train", "eval", "test"]
    # Decoded and scored by different programs: equal but for rounding.
    assert 0 < lines[3]["rollout/logprob_diff/max"] < 1e-4
    moved = adapters_of(run, start)
    assert set(moved["layers"]) == set(LORA["lora_targets"])
    assert all(np.abs(x).max() > 1e-3 for x in jax.tree.leaves(moved))


@pytest.mark.slow
def test_an_export_is_the_merged_policy_and_a_start(run: Path, start: str, tmp_path: Path):
    cfg = config(start, iterations=2)
    folder, _ = export_run(cfg, run, "last")
    found = load_pretrained(folder)[1]
    base = load_pretrained(start)[1]
    expected = merge_adapters(with_adapters(base, adapters_of(run, start)), 2.0)
    cases.assert_equal(found, expected)
    assert {x.name for x in (run / "adapters").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    other = cases.config(model={"path": str(run)})
    with open_session(other, tmp_path / "new") as session:
        cases.assert_equal(session.start, expected)
    # What PEFT reads is a start, too.
    with open_session(cases.config(model={"path": str(run / "adapters")}), tmp_path / "peft") as of:
        for one, other in zip(jax.tree.leaves(of.start), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    # adapters on adapters: those below are merged
    again = config(str(run))
    with open_session(again, tmp_path / "again") as session:
        cases.assert_equal(session.start, expected)


@pytest.mark.slow
def test_the_best_adapters_are_evaluated_on_what_is_below(run: Path, start: str, tmp_path: Path):
    workdir = Path(shutil.copytree(run, tmp_path / "run"))
    with Checkpoints(workdir / "best", keep=1) as best:
        best.save_params(2, adapters_of(run, start), {"pass_at_1": 1.0})
    record = evaluate_run(config(start, iterations=2), workdir)
    assert record["source"] == "best/2"
    last = cases.read_lines(run / "metrics.jsonl")[-1]
    assert record["pass_at_1"] == last["test/pass_at_1"]


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_to_the_bit(
    run: Path, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = loop.TrainingRun._train_iteration

    def stopping(self: Any) -> None:
        if self.progress.done == 1:
            raise Stopped(15)
        made(self)

    cfg = config(start, iterations=2)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(loop.TrainingRun, "_train_iteration", stopping)
        loop.train(cfg, tmp_path)
    loop.train(cfg, tmp_path)
    cases.assert_equal(adapters_of(tmp_path, start), adapters_of(run, start))
    lines = [cases.read_lines(folder / "metrics.jsonl") for folder in (tmp_path, run)]
    assert cases.without_clock(lines[0]) == cases.without_clock(lines[1])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "ppo", "restem", "dpo_positive", "sft"])
def test_methods_train_adapters(method: str, start: str, tmp_path: Path):
    sections: dict[str, Any] = {
        "restem": {"restem": {"problems": 8, "epochs": 2, "eval_every": 2}},
        "dpo_positive": {"dpo": {"problems": 8, "epochs": 1, "pairs": 4}},
    }.get(method, {})
    cfg = config(
        start, method=method, iterations=1, values={"k": 9, "max_states": None}, **sections
    )
    loop.train(cfg, tmp_path)
    line = cases.read_lines(tmp_path / "metrics.jsonl")[2]
    assert line["total/updates"] > 0


@pytest.mark.parametrize("targets", [("q", "qkv"), ()])
def test_targets_must_be_projections(targets: tuple[str, ...]):
    with refuses("model.lora_targets"):
        check_config(cases.config(model={"path": "x"} | LORA | {"lora_targets": targets}))
