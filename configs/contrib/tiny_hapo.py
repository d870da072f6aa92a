"""HAPO on the tiny task: clip bounds and advantages by entropy, upper clip 0.28.

    python -m vinejax.main --config=configs/contrib/tiny_hapo.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "hapo"
    return cfg
