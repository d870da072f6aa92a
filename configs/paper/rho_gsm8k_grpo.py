"""GRPO, RhoMath 1.1B on GSM8K, as in the paper.

    python -m vinejax.main --config=configs/paper/rho_gsm8k_grpo.py \\
        --config.data.path=FOLDER

Hardware: four devices of 80 GB, as the paper used; not run here.
Reproduces: 44.6% pass@1 on the test split, the paper's GRPO row.
Departs: the paper does not state GRPO's settings; these are VinePPO's, as it trained all methods
with one trainer. Loss and KL are token means.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "rho_gsm8k.py")
    cfg.method = "grpo"
    return cfg
