"""On-policy distillation on the tiny task: a teacher judges every token, without KL.

    python -m vinejax.main --config=configs/tiny.py                 # trains the teacher
    python -m vinejax.main --config=configs/contrib/tiny_opd.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "opd"
    cfg.opd.teacher = "runs/tiny"
    cfg.kl.coef = 0.0
    return cfg
