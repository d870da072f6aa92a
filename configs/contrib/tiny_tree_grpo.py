"""Tree-GRPO on the tiny task: 2 solutions, branched at two of their step ends.

    python -m vinejax.main --config=configs/contrib/tiny_tree_grpo.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "tree_grpo"
    cfg.rollout.per_prompt = 2
    return cfg
