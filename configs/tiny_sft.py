"""Supervised fine-tuning on the tiny task's own solutions, from the shipped start.

    python -m vinejax.main --config=configs/tiny_sft.py

No gain is expected: the start was trained on the same solutions, which are hasty (see
vinejax/tasks/arithmetic.py).
The formula and its source: docs/methods.md.
"""

from vinejax.config import default, from_file


def get_config():
    cfg = from_file(__file__, "tiny.py")
    cfg.method = "sft"
    cfg.optimizer = default().optimizer
    cfg.iterations = 2
    cfg.eval.every = 1
    cfg.sft.learning_rate = 1e-3
    return cfg
