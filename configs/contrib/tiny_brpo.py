"""BRPO on the tiny task: a judge compares solutions with a random one of their problem.

    python -m vinejax.main --config=configs/contrib/tiny_brpo.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "brpo"
    return cfg
