"""TEMPO on the tiny task: GRPO, and the value of the tokens at which solutions part.

    python -m vinejax.main --config=configs/contrib/tiny_tempo.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "tempo"
    cfg.kl.coef = 0.0
    return cfg
