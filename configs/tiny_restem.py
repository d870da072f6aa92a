"""RestEM on the tiny task: each iteration fine-tunes the start on sampled correct solutions.

    python -m vinejax.main --config=configs/tiny_restem.py

Its three iterations sample 72,000 solutions; the 25 of configs/tiny.py sample 6,400 solutions and
24,000 continuations, which are shorter (2026-11-28).
The formula and its source: docs/methods.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "tiny.py")
    cfg.method = "restem"
    cfg.iterations = 3
    cfg.rollout.per_prompt = 4
    cfg.restem.epochs = 2
    cfg.restem.eval_every = 1000
    cfg.optimizer.learning_rate = 1e-3
    cfg.eval.every = 1
    return cfg
