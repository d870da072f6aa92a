"""POPri on the tiny task: pairs of the best of eight solutions and the one of rank 5.

    python -m vinejax.main --config=configs/contrib/tiny_popri.py

Rewards are the task's here. Noised votes of clients: vinejax/contrib/examples/noised_votes.py. The
equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "popri"
    cfg.popri.problems = 256
    cfg.popri.beta = 0.3
    return cfg
