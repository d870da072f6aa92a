"""VinePPO on the tiny task with cheaper values: ours, not the paper's setting.

    python -m vinejax.main --config=configs/tiny_recommended.py

Three continuations a state instead of nine, at most eight states a solution, spread over it, and
every value uses all samples of its problem that pass through the state: docs/credit.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "tiny.py")
    cfg.values.k = 3
    cfg.values.spread = 8
    cfg.values.reuse = True
    return cfg
