"""SALT on the tiny task, where an episode is one turn; configs/doors.py has an environment.

    python -m vinejax.main --config=configs/contrib/tiny_salt.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "salt"
    return cfg
