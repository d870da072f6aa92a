"""OPMD on the tiny task: REINFORCE against the mean of the group, near the sampling policy.

    python -m vinejax.main --config=configs/contrib/tiny_opmd.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "opmd"
    cfg.opmd.tau = 0.1
    return cfg
