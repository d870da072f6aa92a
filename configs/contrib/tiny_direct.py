"""Direct Advantage Policy Optimization on the tiny task: VinePPO without a ratio.

    python -m vinejax.main --config=configs/contrib/tiny_direct.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "direct"
    return cfg
