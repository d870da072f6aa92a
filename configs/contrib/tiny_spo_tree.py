"""SPO-tree on the tiny task: 3 · 3 · 3 solutions that branch after 8 and 16 tokens.

    python -m vinejax.main --config=configs/contrib/tiny_spo_tree.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "spo_tree"
    cfg.rollout.per_prompt = 3
    cfg.spo_tree.branching = (3, 3, 3)
    cfg.spo_tree.segment = 8
    return cfg
