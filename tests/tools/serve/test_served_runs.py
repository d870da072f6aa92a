"""Servers of runs: newer checkpoints, and values of the run's critic or probe."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from helpers.paths import CONFIGS

import vinejax
from vinejax.config.load import from_dict, load, override
from vinejax.core.types import Batch
from vinejax.learner.score import narrow_states, num_tapped
from vinejax.methods.ppo import token_values
from vinejax.tasks.prompts import encode_prompt
from vinejax.tasks.rewards import TrainerState
from vinejax.tools.serve.serve_mode import service_of
from vinejax.tools.serve.served_model import NewerWeights, newest_checkpoint
from vinejax.training.export import load_reward_model

testclient = pytest.importorskip("starlette.testclient", reason="the extra `serve` is missing")
pytestmark = pytest.mark.slow
SOLUTION = "\n7+8=15\n15-4=11\n#### 11"
SMALL = {
    "iterations": 1,
    "rollout.prompts": 8,
    "rollout.per_prompt": 4,
    "rollout.slots": 8,
    "ppo.minibatch": 32,
    "eval.every": 0,
    "eval.problems": 8,
    "eval.samples": 1,
    "checkpoint.every": 1,
    "compile_cache": "none",
}


def config_of(file: str, **fields: Any) -> Any:
    values = load(str(CONFIGS / file))
    overrides = {name.replace("__", "."): value for name, value in fields.items()}
    override(values, {**SMALL, **overrides})
    return from_dict(values)


def test_a_critic_gives_values_and_newer_weights_are_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "run"
    cfg = config_of("tiny_ppo.py")
    vinejax.train(cfg, workdir=folder)
    with service_of(cfg, folder) as service:
        client, scheduler = testclient.TestClient(service.app()), service.answerer.scheduler
        assert scheduler.source == "checkpoints/1"
        assert service.answerer.valuer.graded.state == TrainerState(1, cfg.iterations)
        fields = {"problem": "7+8-4", "solution": SOLUTION}
        reply = client.post("/v1/step_values", json=fields).json()
        assert reply["source"] == "critic" and reply["model"] == "run"
        (solution,) = reply["solutions"]
        found = load_reward_model(cfg, workdir_of(service))
        assert found is not None
        scorer, ids = found[0], encode_prompt(found[1].tokenizer, "7+8-4=", False)
        response = found[1].tokenizer.encode(SOLUTION, add_special_tokens=False)
        tokens = np.array([ids + response])
        critic = {
            "backbone": scorer.params,
            "head": {"kernel": scorer.kernel, "bias": scorer.bias},
        }
        ones = np.ones_like(tokens)
        positions, zeros = np.arange(tokens.size)[None], 0.0 * ones
        batch = Batch(tokens, ones, positions, ones > 0, zeros, zeros, zeros)
        expected = np.asarray(token_values(scorer.model, critic, batch))[0]
        starts = np.cumsum([0, *(len(step["text"]) for step in solution["steps"])])[:-1]
        values = [step["value"] for step in solution["steps"]]
        np.testing.assert_allclose(values, expected[len(ids) + starts], atol=1e-4)
        assert all(step["standard_error"] is None for step in solution["steps"])
        assert solution["reward"] is None and solution["steps"][-1]["advantage"] is None
        best = client.post("/v1/step_values", json={"problem": "7+8-4", "n": 4}).json()
        assert len(best["solutions"]) == 4

        text = {"prompt": "7+8-4=", "seed": 1, "max_tokens": 40}
        before = client.post("/v1/completions", json=text).json()
        mesh = service.answerer.model.mesh
        newer = NewerWeights(workdir_of(service), mesh, 1, scheduler.replace_weights)
        newer.look()
        assert scheduler.source == "checkpoints/1"
        vinejax.train(config_of("tiny_ppo.py", iterations=2), workdir=folder)
        newer.look()
        after = client.post("/v1/completions", json=text).json()
        assert before["system_fingerprint"] == "checkpoints/1"
        assert after["system_fingerprint"] == "checkpoints/2"
    assert "serves checkpoints/2 from now on" in capsys.readouterr().out


def workdir_of(service: Any) -> Any:
    """The workdir of a service."""
    return service.answerer.valuer.load_learned._workdir


def test_a_probe_gives_values(tmp_path: Path):
    folder = tmp_path / "run"
    cfg = config_of("tiny.py", values__prior="probe", values__k=2)
    vinejax.train(cfg, workdir=folder)
    with service_of(cfg, folder) as service:
        client = testclient.TestClient(service.app())
        fields = {"problem": "7+8-4", "solution": SOLUTION}
        reply = client.post("/v1/step_values", json=fields).json()
        assert reply["source"] == "probe"
        values = [step["value"] for step in reply["solutions"][0]["steps"]]
        found = load_reward_model(cfg, workdir_of(service))
        assert found is not None
        scorer, trained = found
        ids = encode_prompt(trained.tokenizer, "7+8-4=", False)
        tokens = jnp.array([ids + trained.tokenizer.encode(SOLUTION, add_special_tokens=False)])
        where = tokens, jnp.arange(tokens.size)[None], jnp.ones_like(tokens)
        tapped = trained.model.hidden(trained.params, *where, tap=num_tapped(trained.model))[1]
        states = narrow_states(tapped[0])
        starts = np.cumsum([0, *(len(x["text"]) for x in reply["solutions"][0]["steps"])])[:-1]
        at = np.asarray(states)[len(ids) - 1 + starts]
        expected = at @ scorer.kernel + scorer.bias + scorer.per_token * starts
        np.testing.assert_allclose(values, expected, atol=1e-4)


def test_a_checkpoint_that_is_not_complete_is_not_the_newest(tmp_path: Path):
    folder = epath.Path(tmp_path)
    assert newest_checkpoint(folder / "none") is None
    (folder / "7").mkdir()
    (folder / "8.orbax-checkpoint-tmp").mkdir()
    assert newest_checkpoint(folder) is None
