"""TreeRL on the tiny task: 2 solutions, branched in place of their two least likely tokens.

    python -m vinejax.main --config=configs/contrib/tiny_treerl.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "treerl"
    cfg.rollout.per_prompt = 2
    cfg.kl.coef = 0.0
    return cfg
