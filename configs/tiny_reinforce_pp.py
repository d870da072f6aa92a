"""REINFORCE++ on the tiny task: the advantage is the whitened return, KL penalty included.

    python -m vinejax.main --config=configs/tiny_reinforce_pp.py

The formula and its source: docs/methods.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "tiny.py")
    cfg.method = "reinforce++"
    return cfg
