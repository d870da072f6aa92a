"""SPO-chain on the tiny task: states before unlikely tokens, which alone are trained on.

    python -m vinejax.main --config=configs/tiny_spo_chain.py

The rules and their source: docs/credit.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "tiny.py")
    cfg.method = "spo_chain"
    return cfg
