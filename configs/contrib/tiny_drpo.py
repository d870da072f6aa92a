"""DRPO on the tiny task: length decides among right solutions alone, no ratio.

    python -m vinejax.main --config=configs/contrib/tiny_drpo.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "drpo"
    return cfg
