"""DAPO on the tiny task: only groups with spread, upper clip 0.28, no KL.

    python -m vinejax.main --config=configs/tiny_dapo.py

The formula and its source: docs/methods.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "tiny.py")
    cfg.method = "dapo"
    cfg.kl.coef = 0.0
    return cfg
