"""RLOO, RhoMath 1.1B on GSM8K, as in the paper.

    python -m vinejax.main --config=configs/paper/rho_gsm8k_rloo.py \\
        --config.data.path=FOLDER

Hardware: four devices of 80 GB, as the paper used; not run here.
Reproduces: 44.5% pass@1 on the test split, the paper's RLOO row.
Departs: the paper does not state RLOO's settings; these are VinePPO's, as it trained all methods
with one trainer. Loss and KL are token means.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "rho_gsm8k.py")
    cfg.method = "rloo"
    return cfg
