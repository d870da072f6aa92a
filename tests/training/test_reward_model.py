"""Tests `--mode=export` of a run with learned values: the reward model gives the same values."""

import dataclasses
import json
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers import vine_cases
from helpers.model_oracles import Model, random_model, rms_norm
from helpers.paths import REPO
from safetensors.numpy import load_file, save_file

from vinejax.core.settings import Config
from vinejax.core.types import Batch, Rollout, RunState, TrainState
from vinejax.credit import probe
from vinejax.credit.assign import state_numbers, state_places
from vinejax.learner.batch import collate, step_layout
from vinejax.learner.packing import Passes
from vinejax.learner.score import MAX_STATE_WIDTH, outputs_of
from vinejax.methods.learned_value import probe_features, states_of
from vinejax.methods.ppo import critic_weights, fresh_critic, token_values
from vinejax.model.decoder import Params
from vinejax.model.hf.weights import load_pretrained, save_pretrained
from vinejax.model.lora import abstract_adapters
from vinejax.model.sharding import make_mesh
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.runtime.workdir import check_workdir, record_run
from vinejax.training import export
from vinejax.training.export import export_run


def exported(cfg: Config, model: Model, kept: Any, workdir: Path) -> Path:
    """The reward model of a run whose only checkpoint has this state."""
    record_run(cfg, check_workdir(cfg, workdir))
    with Checkpoints(workdir / "checkpoints", keep=2) as checkpoints:
        state = RunState(TrainState(jnp.int32(7), model.params, {}), kept)
        checkpoints.save(7, state, {"best_accuracy": 0.5, "evaluated": 0})
    export_run(cfg, workdir)
    return workdir / "reward_model"


def read(folder: Path, tokens: np.ndarray, tmp_path: Path) -> np.ndarray:
    """f32[B, T] V after each token, by our forward pass on the folder's weights."""
    raw = json.loads((folder / "config.json").read_text())
    assert raw["id2label"] == {"0": "value"} and raw.pop("value_per_token") is not None
    (name,) = raw["architectures"]
    raw["architectures"] = [name.replace("ForTokenClassification", "ForCausalLM")]
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "config.json").write_text(json.dumps(raw))
    tensors = load_file(folder / "model.safetensors")
    head, bias = tensors.pop("score.weight"), tensors.pop("score.bias")
    save_file(tensors, copy / "model.safetensors")
    model, params, _ = load_pretrained(copy)
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    x, _ = jax.jit(model.hidden)(params, tokens, positions, np.ones_like(tokens))
    scale = np.asarray(params["norm"]["scale"])
    rows = [rms_norm(np.asarray(row), scale, model.cfg.norm_eps) for row in x]
    return np.stack(rows) @ head[0] + bias


def by_transformers(folder: Path, tokens: np.ndarray) -> np.ndarray:
    """f32[B, T] V after each token."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForTokenClassification

    model = AutoModelForTokenClassification.from_pretrained(folder).float().eval()
    with torch.no_grad():
        return model(torch.tensor(np.array(tokens, np.int64))).logits[..., 0].numpy()


def start(tmp_path: Path, method: str, **fields: Any) -> tuple[Config, Model]:
    """A run's configuration and the model that it started from."""
    tokenizer = cases.tokenizer()
    model = random_model(tokenizer=tokenizer, vocab_size=len(tokenizer), **fields)
    save_pretrained(tmp_path / "start", *model)
    return methods.config(method, model={"path": str(tmp_path / "start")}), model


def a_batch() -> tuple[Any, Batch]:
    """One solution with four states."""
    episode = vine_cases.episode(vine_cases.WRONG)
    steps = len(episode.step_ends)
    counts = {"is_state": np.ones(steps, bool), "value_counts": np.zeros(steps, np.int32)}
    episode = dataclasses.replace(episode, **counts)
    return episode, collate([episode], 1)


WIDE = {"width": MAX_STATE_WIDTH + 32, "num_heads": 4, "head_dim": 72, "num_layers": 3}
CASES = {"narrow": {}, "wide": WIDE, "tied": {"tied_head": True}}


@pytest.mark.first(2)
@pytest.mark.parametrize("case", ["narrow", "tied", "wide"])
def test_the_probe_as_a_reward_model(case: str, tmp_path: Path):
    """Its values are the probe's at the same states, with the mean target in place of m."""
    cfg, model = start(tmp_path, "ppo_probe", **CASES[case])
    episode, batch = a_batch()
    steps = step_layout(batch, [episode])
    rollout = Rollout([episode], batch, steps)
    found = outputs_of(model.decoder, model.params, batch, 1.0, Passes(1), state_numbers(steps))
    rollout = rollout._replace(hidden=found.hidden)

    kept = probe.fresh_probe(min(model.decoder.cfg.width, MAX_STATE_WIDTH))
    rng = np.random.default_rng(0)
    states = states_of(rollout, cfg, probe_features(rollout, kept, cfg))
    for _ in range(3):  # targets that differ between states, so that v has something to tell
        given = states._replace(solution_return=rng.random(len(states.solution_return)))
        found = probe.predictions(kept, given)
        kept = probe.updated(
            kept, given, found, given.solution_return, np.zeros(len(given.solution_return), bool)
        )
    assert 0.1 < probe.mean_target(kept) < 0.9
    states = states_of(rollout, cfg, probe_features(rollout, kept, cfg))  # of a lone solution
    v = probe.chosen(kept, probe.predictions(kept, states))

    folder = exported(cfg, model, kept, tmp_path / "run")
    raw = json.loads((folder / "config.json").read_text())
    assert raw["num_hidden_layers"] == (model.decoder.cfg.num_layers + 1) // 2
    used = state_places(rollout)[:, 2]
    last = len(episode.prompt) + used - 1
    given = raw["value_per_token"] * used
    assert np.ptp(v) > 1e-3 and np.abs(given).max() > 1e-3
    np.testing.assert_allclose(read(folder, batch.tokens, tmp_path)[0, last] + given, v, atol=1e-5)


def trained(cfg: Config, model: Model, seed: int) -> Params:
    """All weights, or adapters that change the weights if the run trains adapters."""
    if not cfg.model.lora_rank:
        return model.params
    adapters = abstract_adapters(model.decoder, cfg.model)
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) / 8, x.dtype), adapters)


def critic_of(cfg: Config, model: Model) -> Any:
    critic = fresh_critic(model.decoder, trained(cfg, model, 0), 3, make_mesh(cfg.mesh))
    moved = jax.tree.map(lambda x: jax.device_put(np.asarray(x) * np.float32(1.1)), critic)
    return TrainState(jnp.int32(4), moved, {"mu": moved})


@pytest.mark.parametrize(
    "case", ["narrow", "tied", pytest.param("adapters", marks=pytest.mark.slow)]
)
def test_the_critic_as_a_reward_model(case: str, tmp_path: Path):
    cfg, model = start(tmp_path, "ppo", **CASES.get(case, {}))
    base = None
    if case == "adapters":
        settings = dataclasses.replace(cfg.model, lora_rank=2, lora_alpha=4.0)
        cfg, base = dataclasses.replace(cfg, model=settings), model.params
    critic = critic_of(cfg, model)
    policy = model._replace(params=trained(cfg, model, 1))
    folder = exported(cfg, policy, critic, tmp_path / "run")
    episode, batch = a_batch()
    decoder, weights = model.decoder.computing(cfg.model), critic_weights(critic.params, base)
    values = jax.jit(token_values, static_argnums=0)(decoder, weights, batch)
    expected = np.asarray(values)[0, 1 : len(episode.tokens)]  # before each token but the first
    found = read(folder, batch.tokens, tmp_path)[0, : len(expected)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert np.ptp(expected) > 0.1


def test_other_runs_have_no_reward_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    cfg, model = start(tmp_path, "grpo")
    assert not exported(cfg, model, None, tmp_path / "run").exists()
    assert "values" not in capsys.readouterr().out


def test_values_and_policy_are_of_one_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run that trains meanwhile saves another after the newest was looked for."""
    with Checkpoints(tmp_path / "checkpoints", keep=2) as checkpoints:
        for i in (7, 9):
            like = TrainState(jnp.int32(i), {"w": jnp.full(1, i)}, {})
            checkpoints.save(i, RunState(like, like), {"evaluated": 0})
    found: list[Any] = []
    state = SimpleNamespace(
        has_critic=True,
        reward_model=lambda *given: found.append(given[-1]({"params": like.params})),
    )
    policy = SimpleNamespace(model=None, params={}, adapters=None, source="checkpoints/9")
    monkeypatch.setattr(export, "method_of", lambda cfg: SimpleNamespace(state=state))
    monkeypatch.setattr(export, "find_policy", lambda *_: ("checkpoints", 7))
    monkeypatch.setattr(export, "load_trained", lambda *_: policy)
    export.load_reward_model(methods.config("ppo"), epath.Path(tmp_path))
    assert found[0]["params"]["w"] == 9


@pytest.mark.slow  # torch is loaded
@pytest.mark.parametrize("method", ["ppo", "ppo_probe"])
def test_transformers_reads_a_reward_model(method: str, tmp_path: Path):
    pytest.importorskip("torch")
    cfg, model = start(tmp_path, method)
    kept: Any = critic_of(cfg, model)
    if method == "ppo_probe":
        kept = probe.fresh_probe(model.decoder.cfg.width)
        square, cross = (
            np.eye(len(kept.moments.cross)),
            np.linspace(0.1, 1, len(kept.moments.cross)),
        )
        kept = kept._replace(moments=probe.Moments(square, cross))
    folder = exported(cfg, model, kept, tmp_path / "run")
    _, batch = a_batch()
    expected = read(folder, batch.tokens, tmp_path)
    np.testing.assert_allclose(by_transformers(folder, batch.tokens), expected, atol=1e-4)


@pytest.mark.slow
def test_the_example_reads_a_reward_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("torch")

    cfg, model = start(tmp_path, "ppo")
    folder = exported(cfg, model, critic_of(cfg, model), tmp_path / "run")
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["score_steps.py", str(folder)])
    monkeypatch.setenv("REWARD_MODEL", "")
    runpy.run_path(str(REPO / "examples/score_steps.py"))["main"]()
    prompt, _, header, *rows = capsys.readouterr().out.splitlines()
    assert prompt == "7+8-4-3=" and header.split() == ["success", "after"]
    assert len(rows) == 4 and all(0 <= float(row.split()[0]) <= 1 for row in rows)
