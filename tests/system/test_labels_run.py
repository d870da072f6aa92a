"""Labels through the loop: their log-probabilities, their metrics, and an interrupted run."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods

from vinejax.core.types import Labels
from vinejax.learner.score import outputs_of
from vinejax.methods import stages
from vinejax.training import loop

pytestmark = pytest.mark.slow


def config(start: str, **sections: Any) -> Any:
    values = {"k": 1, "positions": "tokens", "every": 2, "reuse": True, "prior": "probe"}
    credit = {"labels": "blend", "lambda_": 0.5, "baseline_lambda": 0.5}
    fields: dict[str, Any] = {
        "iterations": 2,
        "model": {"path": start},
        "eval": {"every": 0, "samples": 2},
        "values": values | {"max_states": None},
        "credit": credit,
        "ppo": {"minibatch": 8, "microbatch": 4},
    }
    return methods.config("vineppo", **fields | sections)


def trained(workdir: Path) -> list[dict[str, Any]]:
    lines = cases.without_clock(cases.read_lines(workdir / "metrics.jsonl"))
    return [line for line in lines if line["stage"] == "train"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_old_logprobs_of_labels_are_the_learners(
    dtype: str, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In float32 those of the sampler stand for them, without a scoring pass."""
    seen: list[tuple[Labels, np.ndarray]] = []
    with_logprobs = stages.with_logprobs

    def noted(model: Any, params: Any, reference: Any, batch: Any, *more: Any) -> Any:
        result = with_logprobs(model, params, reference, batch, *more)
        _, temperature, passes = more[:3]
        found = outputs_of(model, params, result, temperature, passes).label_logprobs
        assert result.labels is not None and found is not None
        seen.append((result.labels, found))
        return result

    monkeypatch.setattr(stages, "with_logprobs", noted)
    model = {"path": start, "compute_dtype": dtype}
    loop.train(config(start, iterations=1, model=model), tmp_path)
    ((labels, found),) = seen
    is_label = labels.position > 0
    assert is_label.sum() > 4
    old, sampler = labels.old_logprobs[is_label], np.asarray(labels.sampler_logprobs)[is_label]
    np.testing.assert_allclose(old, found[is_label], atol=1e-4 if dtype == "float32" else 0)
    difference = np.abs(old - sampler).max()
    assert difference == 0 if dtype == "float32" else 0 < difference < 0.2


def test_an_interrupted_run_ends_as_one_that_was_not(start: str, tmp_path: Path):
    whole, half = tmp_path / "whole", tmp_path / "half"
    loop.train(config(start), whole)
    shutil.copytree(whole, half)
    for name in ("checkpoints/2", "best"):
        shutil.rmtree(half / name, ignore_errors=True)
    loop.train(config(start), half)
    found = trained(half)[-1]
    assert found == trained(whole)[-1]
    assert 0 < found["credit/labels"] <= found["credit/coverage"] <= 1
    assert 0 < found["credit/agreement"] < 1
