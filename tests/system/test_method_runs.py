"""Each method through the loop: what one iteration leaves, resuming with a critic, and budgets."""

import math
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.applied import TREES
from helpers.paths import CONFIGS

import vinejax
from vinejax.methods.known import all_methods
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.training import loop
from vinejax.training.startup import open_session

SMALL: dict[str, Any] = {
    "restem": {"restem": {"problems": 8, "epochs": 2, "eval_every": 2}},
    "dpo_positive": {"dpo": {"problems": 8, "epochs": 1, "pairs": 4}},
    "inpo": {"inpo": {"problems": 8, "epochs": 1, "pairs": 4}},
    "dapo": {"rollout": {"rounds": 2}},
    "spo_tree": {"spo_tree": {"branching": (3, 2), "segment": 4}},
    "treepo": {"treepo": {"segment": 8}},
    "single_stream": {"rollout": {"prompts": 12, "per_prompt": 1}},
}


def run(method: str, start: str, workdir: Path, **sections: Any) -> list[dict[str, Any]]:
    fields = {"iterations": 1, "model": {"path": start}, "eval": {"every": 0, "samples": 2}}
    loop.train(methods.config(method, **fields | SMALL.get(method, {}) | sections), workdir)
    return cases.read_lines(workdir / "metrics.jsonl")


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


@pytest.mark.first(2)
@pytest.mark.parametrize("method", dict.fromkeys(("restem", "dapo", *all_methods())))
def test_one_iteration(method: str, start: str, tmp_path: Path):
    lines = run(method, start, tmp_path)
    assert [line["stage"] for line in lines] == ["test", "eval", "train", "eval", "test"]
    line = lines[2]
    assert all(math.isfinite(x) for name, x in line.items() if name != "stage")
    assert line["total/updates"] > 0 and line["timing_s/total_train"] == line["timing_s/train"]
    if method == "sft":
        assert line["total/episodes"] == line["total/tokens"] == 0 and line["sft/loss"] > 0
    else:
        sampled = {"restem": 8, "dpo_positive": 8, "inpo": 8, "single_stream": 12}.get(method, 4)
        prompts = line["total/prompts"]
        assert prompts == sampled or (method == "dapo" and prompts in (4, 8))
        assert line["total/episodes"] == (1 if method == "single_stream" else 3) * prompts
        assert line["total/tokens"] >= line["total/episodes"]
        rows = cases.read_lines(tmp_path / "episodes" / "0.jsonl")
        assert len(rows) == (line["actor/rows"] if method in TREES else 12)
        for row in rows:
            steps = "".join(step["text"] for step in row["steps"])
            assert row["given"] + steps == row["response"]
    if all_methods()[method].is_policy_gradient:
        assert line["total/updates"] == 4  # whatever branches off: 12 solutions, 8 per minibatch
        assert line["actor/grad_norm"] > 0 or line["frac_reward_zero_std"] == 1
        assert not line.get("actor/skipped_updates")
    if method == "restem":
        assert 0 < line["restem/kept"] <= 24 and line["restem/evaluations"] >= 2
    with Checkpoints(tmp_path / "checkpoints", keep=1) as checkpoints:
        assert checkpoints.latest() == 1
    assert (tmp_path / "report.html").stat().st_size > 10_000


# Those that set more than the method, which `test_one_iteration` has.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["inpo", "open_rs", "scaf_grpo"])
def test_its_config_trains_for_three_iterations(name: str, tmp_path: Path):
    fields = {"iterations": 3, "rollout.prompts": 8, "eval.every": 0, "eval.samples": 1}
    fields |= {"eval.problems": 4, "rollout.slots": 64, "log.vines": 4}
    fields |= {"inpo": {"inpo.problems": 16}}.get(name, {})
    vinejax.train(CONFIGS / f"tiny_{name}.py", fields, workdir=tmp_path / "run")
    lines = cases.read_lines(tmp_path / "run/metrics.jsonl")
    trained = [line for line in lines if line["stage"] == "train"]
    assert len(trained) == 3 and trained[-1]["total/updates"] >= 3
    for line in trained:
        assert all(math.isfinite(x) for key, x in line.items() if key != "stage")
        assert line["actor/grad_norm"] > 0 and not line.get("actor/skipped_updates")


def state_of(
    start: str, workdir: Path, method: str = "ppo", **sections: Any
) -> tuple[Any, loop.Progress]:
    cfg = methods.config(method, model={"path": start}, **sections)
    with open_session(cfg, workdir) as session:
        with Checkpoints(workdir / "checkpoints", keep=2) as checkpoints:
            return loop.resume(session, checkpoints)


@pytest.mark.slow
def test_a_critic_is_saved_and_restored_with_the_policy(start: str, tmp_path: Path):
    """A run that was interrupted after one of two iterations ends as one that was not."""
    sections: dict[str, Any] = {"iterations": 2, "critic": {"learning_rate": 1e-3}}
    whole, half = tmp_path / "whole", tmp_path / "half"
    run("ppo", start, whole, **sections)
    shutil.copytree(whole, half)
    shutil.rmtree(half / "checkpoints" / "2")
    shutil.rmtree(half / "best", ignore_errors=True)
    fresh, begun = state_of(start, tmp_path / "fresh", **sections)
    assert begun == loop.Progress()
    first, progress = state_of(start, half, **sections)
    assert progress.done == 1 and progress.spent.updates == 4
    assert first.kept.step == 4 and (half / "checkpoints" / "1" / "kept").is_dir()
    moved = jax.tree.map(
        lambda a, b: float(np.abs(a - b).max()), first.kept.params, fresh.kept.params
    )
    assert min(jax.tree.leaves(moved)) > 1e-5
    expected, _ = state_of(start, whole, **sections)
    run("ppo", start, half, **sections)
    found, _ = state_of(start, half, **sections)
    cases.assert_equal(found, expected)


PROBED = {"max_states": None, "positions": "after", "prior": "probe"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "sections",
    [
        {"values": PROBED | {"k": 1}, "credit": {"lambda_": 0.7, "baseline_lambda": 0.5}},
        {
            "values": PROBED | {"k": 1, "prior": "helpers.priors.by_length"},
            "credit": {"lambda_": 0.7, "baseline_lambda": 0.5},
        },
    ],
    ids=["probe", "function"],
)
def test_a_learned_value_is_saved_and_restored_with_the_policy(
    sections: dict, start: str, tmp_path: Path
):
    """A run that was interrupted after two of three iterations ends as one that was not."""
    sections = {"iterations": 3, **sections}
    whole, half = tmp_path / "whole", tmp_path / "half"
    lines = run("vineppo", start, whole, **sections)
    first, *later = (line for line in lines if line["stage"] == "train")
    assert first["value/weight"] == 0 and all(0 <= line["value/weight"] <= 1 for line in later)
    assert all(line["credit/price"] >= 1 for line in (first, *later))
    shutil.copytree(whole, half)
    shutil.rmtree(half / "checkpoints" / "3")
    shutil.rmtree(half / "best", ignore_errors=True)
    run("vineppo", start, half, **sections)
    found, _ = state_of(start, half, "vineppo", **sections)
    expected, progress = state_of(start, whole, "vineppo", **sections)
    assert progress.done == 3 and np.abs(jax.tree.leaves(expected.kept)[0]).max() > 1
    cases.assert_equal(found, expected)


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


@pytest.mark.first
@pytest.mark.parametrize("method", ["restem", "dpo_positive"])
def test_nothing_right_is_nothing_learnt(method: str, start: str, tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr(cases.FewProblems, "reward", lambda *_: 0.0)
    lines = run(method, start, tmp_path)
    assert lines[2]["total/updates"] == 0 and lines[2]["step"] == 0
