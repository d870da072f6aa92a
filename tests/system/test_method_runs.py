"""Each method through the loop: what one iteration leaves, resuming with a critic, and budgets."""

import math
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_runs

from vinejax.methods.known import METHODS
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.training import loop

SMALL: dict[str, Any] = {
    "restem": {"restem": {"problems": 8, "epochs": 2, "eval_every": 2}},
    "dpo_positive": {"dpo": {"problems": 8, "epochs": 1, "pairs": 4}},
    "dapo": {"rollout": {"rounds": 2}},
}


def run(method: str, start: str, workdir: Path, **sections: Any) -> list[dict[str, Any]]:
    return method_runs.run(method, start, workdir, **SMALL.get(method, {}) | sections)


# learner/test_policy_losses.py and contrib/methods/test_entropy_weights.py have its parts.
@pytest.mark.slow
def test_an_iteration_with_another_loss_and_everything_beside_it(start: str, tmp_path: Path):
    ppo = {"minibatch": 8, "microbatch": 4, "loss": "gspo"}
    sections = {"ppo": ppo, "credit": {"mask": "top_entropy"}, "entropy": {"coef": 0.01}}
    (_, _, line, *_) = run("grpo", start, tmp_path, **sections)
    assert all(math.isfinite(x) for name, x in line.items() if name != "stage")
    assert line["rollout/weight"] == pytest.approx(1, abs=1e-4) and line["rollout/masked"] == 0
    assert 0 <= line["rollout/kl"] < 1e-9


@pytest.mark.slow
def test_the_sampler_of_a_deep_model_in_bfloat16_is_a_little_off(tmp_path: Path):
    """Engine and learner round at other points; weights correct for what is left over."""
    model = {"path": "", "num_layers": 8, "compute_dtype": "bfloat16"}
    lines = run("grpo", "", tmp_path, model=model, sft={"steps": 1})
    line = next(line for line in lines if line["stage"] == "train")
    found = {name: line[f"rollout/{name}"] for name in ("kl", "weight", "masked")}
    print(found)
    assert 1e-7 < found["kl"] < 1e-3
    assert 0.5 < found["weight"] < 1.5 and found["weight"] != 1 and found["masked"] < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("method", dict.fromkeys(("grpo", *METHODS)))
def test_one_iteration(method: str, start: str, tmp_path: Path):
    sampled = {"restem": 8, "dpo_positive": 8}.get(method, 4)
    line = method_runs.check_one_iteration(method, start, tmp_path, sampled, SMALL.get(method, {}))
    if method == "restem":
        assert 0 < line["restem/kept"] <= 24 and line["restem/evaluations"] >= 2


@pytest.mark.slow
def test_a_config_that_sets_more_than_the_method_trains(tmp_path: Path):
    method_runs.check_config_file("tiny_open_rs.py", tmp_path)


@pytest.mark.slow
def test_a_critic_is_saved_and_restored_with_the_policy(start: str, tmp_path: Path):
    """A run that was interrupted after one of two iterations ends as one that was not."""
    sections: dict[str, Any] = {"iterations": 2, "critic": {"learning_rate": 1e-3}}
    whole, half = tmp_path / "whole", tmp_path / "half"
    run("ppo", start, whole, **sections)
    shutil.copytree(whole, half)
    shutil.rmtree(half / "checkpoints" / "2")
    shutil.rmtree(half / "best", ignore_errors=True)
    fresh, begun = method_runs.state_of(start, tmp_path / "fresh", **sections)
    assert begun == loop.Progress()
    first, progress = method_runs.state_of(start, half, **sections)
    assert progress.done == 1 and progress.spent.updates == 4
    assert first.kept.step == 4 and (half / "checkpoints" / "1" / "kept").is_dir()
    moved = jax.tree.map(
        lambda a, b: float(np.abs(a - b).max()), first.kept.params, fresh.kept.params
    )
    assert min(jax.tree.leaves(moved)) > 1e-5
    expected, _ = method_runs.state_of(start, whole, **sections)
    run("ppo", start, half, **sections)
    found, _ = method_runs.state_of(start, half, **sections)
    cases.assert_equal(found, expected)


@pytest.mark.slow
def test_a_learned_value_is_saved_and_restored_with_the_policy(start: str, tmp_path: Path):
    sections = {
        "values": method_runs.PROBED | {"k": 1},
        "credit": {"lambda_": 0.7, "baseline_lambda": 0.5},
    }
    method_runs.check_learned_value(start, tmp_path, sections)


@pytest.mark.slow
def test_a_run_stops_at_its_budget(start: str, tmp_path: Path):
    """Four updates an iteration of four prompts; the second one is cut."""
    budget, totals = {"episodes": 17}, {"updates": 6, "prompts": 5, "episodes": 15}
    lines = run("grpo", start, tmp_path, iterations=9, budget=budget)
    trained = [line for line in lines if line["stage"] == "train"]
    assert len(trained) == 2 and [line["stage"] for line in lines[-2:]] == ["eval", "test"]
    for name, total in totals.items():
        assert trained[-1][f"total/{name}"] == total, name
    assert trained[-1]["total/tokens"] == sum(x["rollout/decoded_tokens"] for x in trained)
    with Checkpoints(tmp_path / "checkpoints", keep=2) as checkpoints:
        assert checkpoints.latest() == 2
    again = run("grpo", start, tmp_path, iterations=9, budget=budget)
    assert [x["stage"] for x in again] == [x["stage"] for x in lines]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["restem", "dpo_positive"])
def test_nothing_right_is_nothing_learnt(method: str, start: str, tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr(cases.FewProblems, "reward", cases.only_the_data)
    lines = run(method, start, tmp_path)
    assert lines[2]["total/updates"] == 0 and lines[2]["step"] == 0
