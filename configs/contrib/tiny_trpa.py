"""TRPA on the tiny task: a preference loss over pairs of levels, no ratio.

    python -m vinejax.main --config=configs/contrib/tiny_trpa.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "trpa"
    return cfg
