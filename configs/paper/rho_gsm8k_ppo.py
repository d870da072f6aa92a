"""PPO, RhoMath 1.1B on GSM8K, as in the paper.

    python -m vinejax.main --config=configs/paper/rho_gsm8k_ppo.py \\
        --config.data.path=FOLDER

Hardware: four devices of 80 GB, as the paper used; not run here.
Reproduces: 50.1% pass@1 on the test split, the paper's PPO row.
Departs: as README.md says of all runs; answers are graded strictly unless
grader.mode='reference'.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "rho_gsm8k.py")
    cfg.method = "ppo"
    return cfg
