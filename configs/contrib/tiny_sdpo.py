"""SDPO on the tiny task: the policy, shown a right solution, is the teacher, without KL.

    python -m vinejax.main --config=configs/contrib/tiny_sdpo.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "sdpo"
    cfg.sdpo.text = "{solution}\n{question}"
    cfg.kl.coef = 0.0
    return cfg
