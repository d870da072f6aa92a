"""D3S on the tiny task: GRPO on solutions of varied advantages and on uncertain tokens.

    python -m vinejax.main --config=configs/contrib/tiny_d3s.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "d3s"
    return cfg
