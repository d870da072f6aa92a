"""MDPO on the tiny task: GRPO's advantages, and a penalty on leaving the sampler instead of a clip.

    python -m vinejax.main --config=configs/contrib/tiny_mdpo.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "mdpo"
    cfg.ppo.epochs = 4
    return cfg
