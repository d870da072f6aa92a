"""Open-RS on the tiny task: GRPO with a cosine reward for short right answers, and one for form.

    python -m vinejax.main --config=configs/tiny_open_rs.py

The rewards and their source: examples/rewards/open_rs.py.
"""

import pathlib
import sys

from vinejax.config import from_file


def get_config():
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "examples/rewards"))
    cfg = from_file(__file__, "tiny.py")
    cfg.method = "grpo"
    cfg.rollout.per_prompt = 6
    cfg.sample.temperature = 0.7
    cfg.reward.functions = ("open_rs.form", "open_rs.cosine")
    cfg.reward.weights = (1.0, 2.0)
    return cfg
