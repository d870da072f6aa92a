"""Unlikeliness reward on the tiny task: less for the likelier of the right solutions.

    python -m vinejax.main --config=configs/contrib/tiny_unlikely.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "unlikely"
    return cfg
