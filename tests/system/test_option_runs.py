"""Options through the loop: runs that are interrupted end as if they had not been."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods

from vinejax.learner import batch
from vinejax.methods import stages
from vinejax.methods.base import Method
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.training import loop
from vinejax.training.startup import open_session

pytestmark = pytest.mark.slow

# The option that keeps something, and others that a run can have beside it.
TOGETHER: dict[str, Any] = {
    "rollout": {"zero_variance": "drop"},
    "reward": {"overlong": 0.5, "scale": "batch"},
    "ppo": {"mask_truncated": True},
    "kl": {"coef": 0.1, "target": 0.05, "horizon": 24.0},
}


def config(method: str, start: str, **sections: Any) -> Any:
    fields = {"iterations": 4, "model": {"path": start}, "eval": {"every": 0, "samples": 2}}
    return methods.config(method, **fields | sections)


def trained(workdir: Path) -> list[dict[str, Any]]:
    lines = cases.without_clock(cases.read_lines(workdir / "metrics.jsonl"))
    return [line for line in lines if line["stage"] == "train"]


def state_of(cfg: Any, workdir: Path) -> tuple[Any, loop.Progress]:
    with open_session(cfg, workdir) as session:
        with Checkpoints(workdir / "checkpoints", keep=4) as checkpoints:
            return loop.resume(session, checkpoints)


def whole_and_half(cfg: Any, folder: Path) -> tuple[Path, Path]:
    """The workdirs of a run of four iterations, and of one that was interrupted after three."""
    whole, half = folder / "whole", folder / "half"
    loop.train(cfg, whole)
    shutil.copytree(whole, half)
    for name in ("checkpoints/4", "best"):
        shutil.rmtree(half / name, ignore_errors=True)
    return whole, half


@pytest.mark.parametrize("offload", [False, True])
def test_what_options_keep_is_saved_and_restored(offload: bool, start: str, tmp_path: Path):
    """A run that was interrupted after three of four iterations ends as one that was not."""
    own = {"offload": {"reference": offload, "optimizer": offload}, "checkpoint": {"keep": 4}}
    cfg = config("grpo", start, **TOGETHER | own)
    whole, half = whole_and_half(cfg, tmp_path)
    first, progress = state_of(cfg, half)
    assert progress.done == 3 and set(first.options) == {"adaptive_kl"}
    assert float(first.options["adaptive_kl"]) != 0.1
    loop.train(cfg, half)
    assert trained(half)[-1] == trained(whole)[-1]
    found, expected = state_of(cfg, half)[0], state_of(cfg, whole)[0]
    cases.assert_equal(found, expected)
    lines = trained(whole)
    assert len({line["kl/coef"] for line in lines}) == 4
    if offload:
        plain = config("grpo", start, **TOGETHER | {"checkpoint": {"keep": 4}})
        loop.train(plain, tmp_path / "plain")
        assert trained(tmp_path / "plain") == lines


def test_without_a_coefficient_the_reference_model_has_no_pass(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """And updates are those of a run that has the pass."""
    cfg = config("grpo", start, kl={"coef": 0.0}, iterations=3)
    with monkeypatch.context() as patch:
        patch.setattr(Method, "reads_reference", lambda *_: True)
        loop.train(cfg, tmp_path / "scored")

    def unwanted(*_: Any) -> None:
        raise AssertionError("the reference model was wanted")

    monkeypatch.setattr(stages, "reference_of", unwanted)
    loop.train(cfg, tmp_path / "plain")
    lines = trained(tmp_path / "plain")
    assert lines == trained(tmp_path / "scored") and lines[-1]["total/updates"] > 0
    assert "actor/old_kl" in lines[-1] and "actor/kl" not in lines[-1]


def test_longer_rows_change_results_by_rounding_only(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shapes, lines = [], []

    def collate(*args: Any) -> Any:
        made = batch.collate(*args)
        shapes.append(made.tokens.shape)
        return made

    monkeypatch.setattr(stages, "collate", collate)
    for tokens, microbatch in ((None, 4), (128, 1)):
        ppo = {"row_tokens": tokens, "microbatch": microbatch}
        cfg = config("grpo", start, ppo=ppo, iterations=1)
        loop.train(cfg, tmp_path / str(tokens))
        lines.append(trained(tmp_path / str(tokens))[-1])
    assert shapes[0][1] < shapes[1][1] == 128
    for name in ("actor/loss", "actor/entropy", "actor/grad_norm", "rollout/logprob_diff/mean"):
        assert lines[1][name] == pytest.approx(lines[0][name], rel=1e-4, abs=1e-6)


def test_all_groups_left_out(start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An iteration without a group to learn from makes no update, and is recorded."""
    monkeypatch.setattr(cases.FewProblems, "reward", cases.only_the_data)
    cfg = config("vineppo", start, rollout={"zero_variance": "drop"}, iterations=2)
    loop.train(cfg, tmp_path)
    for line in trained(tmp_path):
        assert line["total/updates"] == line["step"] == 0
        assert line["rollout/discarded"] == 12 and line["frac_reward_zero_std"] == 1


# Options that no run above has, beside one another and other methods.
RUNS: dict[str, dict[str, Any]] = {
    "vineppo": {
        "rollout": {"zero_variance": "resample"},
        "reward": {"overlong": 0.5},
        "ppo": {"mask_truncated": True},
        "kl": {"target": 0.02},
    },
    "grpo": {
        "rollout": {"zero_variance": "drop"},
        "reward": {"overlong": 0.5, "scale": "batch"},
        "kl": {"place": "reward"},
    },
    "ppo": {
        "rollout": {},
        "kl": {"place": "reward", "target": 0.02},
    },
}


@pytest.mark.parametrize("method", RUNS)
def test_options_train_together(method: str, start: str, tmp_path: Path):
    sections = dict(RUNS[method])
    kl = {"coef": 0.1, **sections.pop("kl")}
    loop.train(config(method, start, iterations=3, kl=kl, **sections), tmp_path)
    lines = trained(tmp_path)
    assert len(lines) == 3 and lines[-1]["total/updates"] > 0
    for line in lines:
        assert all(math.isfinite(x) for x in line.values() if not isinstance(x, str))
    if "zero_variance" in sections["rollout"]:
        assert sum(line["rollout/discarded"] for line in lines) > 0
    if "target" in kl:
        assert np.ptp([line["kl/coef"] for line in lines]) > 0
