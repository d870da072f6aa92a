"""GDPO on the tiny task: the task's own reward, and that of Open-RS for short right answers.

    python -m vinejax.main --config=configs/contrib/tiny_gdpo.py

The equation and its source: vinejax/contrib/methods/README.md. The second reward:
examples/rewards/open_rs.py.
"""

import pathlib
import sys

from vinejax.config import from_file


def get_config():
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "examples/rewards"))
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "gdpo"
    cfg.reward.functions = ("task", "open_rs.cosine")
    return cfg
