"""A method of each kind learns the tiny task: from new solutions, and from a fixed set of them."""

from pathlib import Path
from typing import Any

import pytest
from helpers import loop_cases as cases
from helpers.paths import CONFIGS

from vinejax import train as loop
from vinejax.checks import check_config
from vinejax.config import from_dict, from_file

REDUCED: dict[str, dict[str, Any]] = {
    "vineppo": {"iterations": 6},
    "restem": {
        **{"iterations": 2, "restem.problems": 700, "rollout.per_prompt": 4, "restem.epochs": 2},
        **{"restem.eval_every": 1000, "optimizer.learning_rate": 2e-3},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("method", REDUCED)
def test_learning(method: str, tmp_path: Path):
    """Test accuracy at the end above that of the start, by more than the 95% interval."""
    fields: Any = from_file(str(CONFIGS / "tiny.py"), "tiny.py")
    fields.method = method
    fields.eval.problems, fields.eval.every = 256, 0
    for name, value in REDUCED[method].items():
        section, _, leaf = name.rpartition(".")
        (fields[section] if section else fields)[leaf] = value
    cfg = from_dict(fields)
    check_config(cfg)
    loop.train(cfg, tmp_path)
    lines = cases.read_lines(tmp_path / "metrics.jsonl")
    before, after = (line for line in lines if line["stage"] == "test")
    assert after["test/pass_at_1_low"] > before["test/pass_at_1_high"]
