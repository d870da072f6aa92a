"""VinePPO, RhoMath 1.1B on GSM8K, as in the paper.

    python -m vinejax.main --config=configs/paper/rho_gsm8k_vineppo.py \\
        --config.data.path=FOLDER

Hardware: four devices of 80 GB, as the paper used; not run here.
Reproduces: 53.4% pass@1 on the test split, the paper's VinePPO row.
Departs: the sampled token ids are trained on and nothing is dropped (README.md has the rest);
answers are graded strictly unless grader.mode='reference'.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "rho_gsm8k.py")
    cfg.values.budget = "fresh"
    cfg.values.max_states = 25
    return cfg
