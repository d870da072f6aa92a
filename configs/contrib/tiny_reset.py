"""GRPO on the tiny task with resets: further solutions that begin in the middle of others.

    python -m vinejax.main --config=configs/contrib/tiny_reset.py

Problems that mostly fail get a group that begins like a right solution, problems that mostly pass
one that begins like a wrong solution, at the place where half of all continuations are right:
vinejax/contrib/resets/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "grpo"
    cfg.reset.source = "both"
    cfg.reset.at = "edge"
    return cfg
