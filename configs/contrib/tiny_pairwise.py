"""Pairwise-RL on the tiny task: a judge compares solutions with the data's.

    python -m vinejax.main --config=configs/contrib/tiny_pairwise.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "pairwise"
    return cfg
