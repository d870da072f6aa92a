"""INPO on the tiny task: pairs from 16 solutions to each of 200 problems per iteration.

    python -m vinejax.main --config=configs/contrib/tiny_inpo.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "inpo"
    cfg.iterations = 5
    cfg.rollout.per_prompt = 16
    cfg.inpo.problems = 200
    cfg.inpo.pairs = 4
    cfg.inpo.eta = 0.05
    cfg.inpo.epochs = 1
    return cfg
