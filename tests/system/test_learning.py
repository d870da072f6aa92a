"""VinePPO learns the tiny task. `benchmarks/learning_smoke.py` has all methods."""

from pathlib import Path

import pytest
from helpers import loop_cases as cases
from helpers.paths import CONFIGS

from vinejax.config.checks import check_config
from vinejax.config.load import from_dict, from_file
from vinejax.training import loop


@pytest.mark.slow
def test_learning(tmp_path: Path):
    """Test accuracy at the end above that of the start, by more than the 95% interval."""
    fields = from_file(str(CONFIGS / "tiny.py"), "tiny.py")
    fields.eval.problems, fields.eval.every = 128, 0
    fields.iterations = 4
    cfg = from_dict(fields)
    check_config(cfg)
    loop.train(cfg, tmp_path)
    lines = cases.read_lines(tmp_path / "metrics.jsonl")
    before, after = (line for line in lines if line["stage"] == "test")
    assert after["test/pass_at_1_low"] > before["test/pass_at_1_high"]
