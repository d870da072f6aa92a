"""PPO with the probe as critic on the tiny task: configs/tiny.py with another advantage.

    python -m vinejax.main --config=configs/tiny_ppo_probe.py

The formula and its source: docs/methods.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "tiny.py")
    cfg.method = "ppo_probe"
    return cfg
