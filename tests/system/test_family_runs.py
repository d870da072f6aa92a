"""A run of one iteration, with its export, from a tiny model of each family that has one here."""

import math
from pathlib import Path

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.paths import FIXTURES

from vinejax.model.hf.names import by_path
from vinejax.model.hf.weights import load_pretrained
from vinejax.training import loop
from vinejax.training.export import export_run

FAMILIES = ["qwen3_moe", "olmo3"]  # experts, and norms after layers with windows
OTHERS = ["olmoe", "olmo2", "smollm3", "granite", "exaone4", "seed_oss"]
NIGHTLY = [pytest.param(family, marks=pytest.mark.nightly) for family in OTHERS]


@pytest.mark.slow
@pytest.mark.parametrize("family", [*FAMILIES, *NIGHTLY])
def test_an_iteration_trains_every_weight(family: str, tmp_path: Path):
    """VinePPO; the sampler's log-probabilities are the learner's, and the export has the policy."""
    start = str(FIXTURES / "models" / family)
    fields = {"iterations": 1, "model": {"path": start}, "optimizer": {"learning_rate": 1e-2}}
    cfg = methods.config("vineppo", **fields, eval={"every": 0, "samples": 2})
    loop.train(cfg, tmp_path)
    lines = cases.read_lines(tmp_path / "metrics.jsonl")
    assert [line["stage"] for line in lines] == ["test", "eval", "train", "eval", "test"]
    train = lines[2]
    assert all(math.isfinite(x) for name, x in train.items() if name != "stage")
    assert train["rollout/logprob_diff/max"] < 1e-3 and train["total/updates"] > 0
    export_run(cfg, tmp_path, "last")
    before, after = load_pretrained(start)[1], load_pretrained(tmp_path / "export")[1]
    for path, x in by_path(before).items():
        moved = np.abs(np.subtract(by_path(after)[path], x)).max()
        assert moved > 0, "/".join(path)
