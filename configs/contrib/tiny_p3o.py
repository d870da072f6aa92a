"""P3O on the tiny task: halves of reward differences, one clipped ratio per solution.

    python -m vinejax.main --config=configs/contrib/tiny_p3o.py

The formula and its source: docs/methods.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "p3o"
    return cfg
