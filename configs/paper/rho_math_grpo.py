"""GRPO, RhoMath 1.1B on MATH, as in the paper.

    python -m vinejax.main --config=configs/paper/rho_math_grpo.py \\
        --config.data.path=FOLDER

Hardware: four devices of 80 GB, as the paper used; not run here.
The paper's GRPO figure for this model and task was not at hand.
Departs: the paper does not state GRPO's settings; these are VinePPO's, as it trained all methods
with one trainer. Loss and KL are token means.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "rho_math.py")
    cfg.method = "grpo"
    return cfg
