"""RLOO, RhoMath 1.1B on MATH, as in the paper.

    python -m vinejax.main --config=configs/paper/rho_math_rloo.py \\
        --config.data.path=FOLDER

Hardware: four devices of 80 GB, as the paper used; not run here.
The paper's RLOO figure for this model and task was not at hand.
Departs: the paper does not state RLOO's settings; these are VinePPO's, as it trained all methods
with one trainer. Loss and KL are token means.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "rho_math.py")
    cfg.method = "rloo"
    return cfg
