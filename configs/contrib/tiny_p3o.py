"""P3O on the tiny task: halves of reward differences, one clipped ratio per solution.

    python -m vinejax.main --config=configs/contrib/tiny_p3o.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "p3o"
    return cfg
