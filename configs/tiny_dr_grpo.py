"""Dr. GRPO on the tiny task: neither standard deviation nor length divides the loss; no KL.

    python -m vinejax.main --config=configs/tiny_dr_grpo.py

The formula and its source: docs/methods.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "tiny.py")
    cfg.method = "dr_grpo"
    cfg.kl.coef = 0.0
    return cfg
