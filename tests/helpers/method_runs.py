"""Runs of one method through the loop, and what they must leave."""

import math
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

import vinejax
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.paths import CONFIGS
from vinejax.methods.known import find_method
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.training import loop
from vinejax.training.startup import open_session

# A learned value beside each state's continuations.
PROBED = {"max_states": None, "positions": "after", "prior": "probe"}


def run(method: str, start: str, workdir: Path, **sections: Any) -> list[dict[str, Any]]:
    """The records of a run of one iteration from these weights."""
    fields = {"iterations": 1, "model": {"path": start}, "eval": {"every": 0, "samples": 2}}
    loop.train(methods.config(method, **fields | sections), workdir)
    return cases.read_lines(workdir / "metrics.jsonl")


def state_of(
    start: str, workdir: Path, method: str = "ppo", **sections: Any
) -> tuple[Any, loop.Progress]:
    """What a run would go on from, and how far it is."""
    cfg = methods.config(method, model={"path": start}, **sections)
    with open_session(cfg, workdir) as session:
        with Checkpoints(workdir / "checkpoints", keep=2) as checkpoints:
            return loop.resume(session, checkpoints)


def check_one_iteration(
    method: str,
    start: str,
    workdir: Path,
    sampled: int,
    sections: dict[str, Any],
    per_prompt: int = 3,
    is_tree: bool = False,
) -> dict[str, Any]:
    """Checks the records and files of one iteration of `sampled` prompts; the training record."""
    lines = run(method, start, workdir, **sections)
    assert [line["stage"] for line in lines] == ["test", "eval", "train", "eval", "test"]
    line = lines[2]
    assert all(math.isfinite(x) for name, x in line.items() if name != "stage")
    assert line["total/updates"] > 0 and line["timing_s/total_train"] == line["timing_s/train"]
    if method == "sft":
        assert line["total/episodes"] == line["total/tokens"] == 0 and line["sft/loss"] > 0
    else:
        prompts = line["total/prompts"]
        assert prompts == sampled or (method == "dapo" and prompts in (4, 8))
        assert line["total/episodes"] == per_prompt * prompts
        assert line["total/tokens"] >= line["total/episodes"]
        rows = cases.read_lines(workdir / "episodes" / "0.jsonl")
        assert len(rows) == (line["actor/rows"] if is_tree else 12)
        for row in rows:
            steps = "".join(step["text"] for step in row["steps"])
            assert row["given"] + steps == row["response"]
    if find_method(method).is_policy_gradient:
        assert line["total/updates"] == 4  # whatever branches off: 12 solutions, 8 per minibatch
        assert line["actor/grad_norm"] > 0 or line["frac_reward_zero_std"] == 1
        assert not line.get("actor/skipped_updates")
        if find_method(method).state.has_critic:
            assert line["critic/explained_variance"] <= 1
        if method in ("grpo", "rloo"):  # train on all that they sample
            assert line["actor/tokens"] == line["total/tokens"]
    with Checkpoints(workdir / "checkpoints", keep=1) as checkpoints:
        assert checkpoints.latest() == 1
    return line


def check_config_file(name: str, folder: Path, **more: Any) -> None:
    """Trains a file of configs/ for three small iterations."""
    fields = {"iterations": 3, "rollout.prompts": 8, "eval.every": 0, "eval.samples": 1}
    fields |= {"eval.problems": 4, "rollout.slots": 64, "log.vines": 4}
    vinejax.train(CONFIGS / name, fields | more, workdir=folder / "run")
    lines = cases.read_lines(folder / "run/metrics.jsonl")
    trained = [line for line in lines if line["stage"] == "train"]
    assert len(trained) == 3 and trained[-1]["total/updates"] >= 3
    for line in trained:
        assert all(math.isfinite(x) for key, x in line.items() if key != "stage")
        assert line["actor/grad_norm"] > 0 and not line.get("actor/skipped_updates")


def check_learned_value(start: str, folder: Path, sections: dict[str, Any]) -> None:
    """A run that was interrupted after two of three iterations ends as one that was not."""
    sections = {"iterations": 3, **sections}
    whole, half = folder / "whole", folder / "half"
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
