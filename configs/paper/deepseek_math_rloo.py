"""RLOO, DeepSeekMath 7B on MATH, as in the paper.

    python -m vinejax.main --config=configs/paper/deepseek_math_rloo.py \\
        --config.data.path=FOLDER

Hardware: eight devices of 80 GB, as the paper used; not run here.
Reproduces: 36.8% pass@1 on the test split, the paper's RLOO row.
Departs: the paper does not state RLOO's settings; these are VinePPO's, as it trained all methods
with one trainer. Loss and KL are token means.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "deepseek_math.py")
    cfg.method = "rloo"
    return cfg
