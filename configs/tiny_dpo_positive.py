"""DPO-Positive on the tiny task: pairs from 16 solutions to each of 1,500 problems.

    python -m vinejax.main --config=configs/tiny_dpo_positive.py

The formula and its source: docs/methods.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "tiny.py")
    cfg.method = "dpo_positive"
    cfg.iterations = 1
    cfg.rollout.per_prompt = 16
    cfg.dpo.problems = 1500
    cfg.dpo.pairs = 8
    cfg.dpo.beta = 0.3
    cfg.dpo.epochs = 2
    cfg.optimizer.learning_rate = 5e-4
    return cfg
