"""POAD on the tiny task, where an action is a line.

    python -m vinejax.main --config=configs/contrib/tiny_poad.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "poad"
    cfg.critic.learning_rate = 1e-3
    return cfg
