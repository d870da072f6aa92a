"""TreePO on the tiny task: 8 solutions that branch every 8 tokens.

    python -m vinejax.main --config=configs/contrib/tiny_treepo.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "treepo"
    cfg.treepo.segment = 8
    cfg.kl.coef = 0.0
    return cfg
