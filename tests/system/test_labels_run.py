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


class Noted:
    """Batches of a run, each with what a scoring pass finds for its labels."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.seen: list[tuple[Labels, np.ndarray]] = []
        self.policy_outputs, self.with_logprobs = stages.policy_outputs, stages.with_logprobs
        monkeypatch.setattr(stages, "policy_outputs", self.noting_params)
        monkeypatch.setattr(stages, "with_logprobs", self.noting_labels)

    def noting_params(self, model: Any, params: Any, *more: Any, **keep: Any) -> Any:
        self.params = params
        return self.policy_outputs(model, params, *more, **keep)

    def noting_labels(self, model: Any, reference: Any, batch: Any, *more: Any) -> Any:
        result = self.with_logprobs(model, reference, batch, *more)
        _, temperature, passes = more
        found = outputs_of(model, self.params, result, temperature, passes).label_logprobs
        assert result.labels is not None and found is not None
        self.seen.append((result.labels, found))
        return result

    def first(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Old log-probabilities of the first batch's labels: the batch's, sampler's, learner's."""
        labels, found = self.seen[0]
        is_label = labels.position > 0
        assert is_label.sum() > 4
        sampler = np.asarray(labels.sampler_logprobs)
        return labels.old_logprobs[is_label], sampler[is_label], found[is_label]


def test_in_bfloat16_the_learner_scores_labels(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    noted = Noted(monkeypatch)
    model = {"path": start, "compute_dtype": "bfloat16"}
    loop.train(config(start, iterations=1, model=model), tmp_path)
    old, sampler, learner = noted.first()
    np.testing.assert_array_equal(old, learner)
    assert 0 < np.abs(old - sampler).max() < 0.2


def test_an_interrupted_run_ends_as_one_that_was_not(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In float32, where the sampler's log-probabilities of labels stand for the learner's."""
    noted = Noted(monkeypatch)
    whole, half = tmp_path / "whole", tmp_path / "half"
    loop.train(config(start), whole)
    old, sampler, learner = noted.first()
    np.testing.assert_array_equal(old, sampler)
    np.testing.assert_allclose(old, learner, atol=1e-4)
    shutil.copytree(whole, half)
    for name in ("checkpoints/2", "best"):
        shutil.rmtree(half / name, ignore_errors=True)
    loop.train(config(start), half)
    found = trained(half)[-1]
    assert found == trained(whole)[-1]
    assert 0 < found["credit/labels"] <= found["credit/coverage"] <= 1
    assert 0 < found["credit/agreement"] < 1
