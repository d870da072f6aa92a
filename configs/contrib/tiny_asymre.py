"""AsymRE on the tiny task: REINFORCE without a ratio; the baseline is below the mean of the group.

    python -m vinejax.main --config=configs/contrib/tiny_asymre.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "asymre"
    return cfg
