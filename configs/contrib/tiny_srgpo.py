"""SRGPO on the tiny task, where nothing rewards turns; configs/doors.py has an environment.

    python -m vinejax.main --config=configs/contrib/tiny_srgpo.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "srgpo"
    return cfg
