"""Scaf-GRPO on the tiny task: GRPO, and lines of the data's solution where all are wrong.

    python -m vinejax.main --config=configs/contrib/tiny_scaf_grpo.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "scaf_grpo"
    cfg.scaf.text = "={hint}="
    return cfg
