"""Tests that arrays moved to the host's memory come back unchanged."""

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods

from vinejax.core.settings import OffloadConfig
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.runtime.offload import to_device, to_host
from vinejax.training import loop
from vinejax.training.startup import open_session
from vinejax.training.warmup import warm_up

BOTH = {"reference": True, "optimizer": True}
CLOCK = ("timing_s/", "perf/", "rollout/compiles")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(warm_up(cases.config(sft={"steps": 25}), tmp_path_factory.mktemp("start")))


def kinds(tree: Any) -> set[str]:
    return {str(x.sharding.memory_kind) for x in jax.tree.leaves(tree)}


def test_there_and_back():
    tree = {"a": jax.numpy.arange(6.0), "b": jax.numpy.ones((2, 2))}
    of_host = np.ones(3)
    assert to_host([of_host])[0] is of_host and to_device([of_host])[0] is of_host
    there = to_host(tree)
    assert kinds(there) == {"pinned_host"}
    back = to_device(there)
    assert kinds(back) == {"device"}
    cases.assert_equal(back, tree)
    assert to_device(tree)["a"] is tree["a"]  # what is there already is not copied


@pytest.mark.slow
@pytest.mark.parametrize("method", ["vineppo", "ppo", "sft"])
def test_a_run_is_the_same(method: str, start: str, tmp_path: Path):
    fields: dict[str, Any] = {"iterations": 2, "model": {"path": start}, "eval": {"every": 0}}
    loop.train(methods.config(method, **fields), tmp_path / "plain")
    loop.train(methods.config(method, **fields, offload=BOTH), tmp_path / "offloaded")
    plain, offloaded = (
        [
            {name: x for name, x in line.items() if not name.startswith(CLOCK)}
            for line in cases.read_lines(tmp_path / folder / "metrics.jsonl")
        ]
        for folder in ("plain", "offloaded")
    )
    assert plain == offloaded


@pytest.mark.slow
def test_the_state_leaves_the_devices_and_resumes(start: str, tmp_path: Path):
    fields: dict[str, Any] = {"model": {"path": start}, "eval": {"every": 0}, "offload": BOTH}
    cfg = methods.config("ppo", iterations=1, **fields)
    loop.train(cfg, tmp_path / "run")
    with (
        open_session(cfg, tmp_path / "run") as session,
        Checkpoints(tmp_path / "run" / "checkpoints", keep=2) as checkpoints,
    ):
        assert kinds(session.start) == {"pinned_host"} and kinds(session.load_reference()) == {
            "device"
        }
        state, progress = loop.resume(session, checkpoints)
    assert progress.done == 1 and kinds(state.policy.params) == {"device"}
    assert kinds(state.policy.opt_state) == kinds(state.kept) == {"pinned_host"}
    assert loop.offloaded(cases.config(), state) is state
    assert cases.config().offload == OffloadConfig()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    loop.train(methods.config("ppo", iterations=2, **fields), tmp_path / "run")
    plain = {name: x for name, x in fields.items() if name != "offload"}
    loop.train(methods.config("ppo", iterations=2, **plain), tmp_path / "copy")
    one, other = (
        cases.read_lines(tmp_path / folder / "metrics.jsonl")[-1] for folder in ("run", "copy")
    )
    np.testing.assert_equal(one["test/pass_at_1"], other["test/pass_at_1"])
