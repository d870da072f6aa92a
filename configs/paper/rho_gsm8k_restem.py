"""RestEM, RhoMath 1.1B on GSM8K, as in the paper.

    python -m vinejax.main --config=configs/paper/rho_gsm8k_restem.py \\
        --config.data.path=FOLDER

Hardware: four devices of 80 GB, as the paper used; not run here.
Reproduces: 42.8% pass@1 on the test split, the paper's RestEM row.
Departs: an iteration ends at the first look at validation that is no better; the paper trains all
eight epochs and walks over the checkpoints afterwards, to the same policy.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "rho_gsm8k.py")
    cfg.method = "restem"
    cfg.iterations = 10
    cfg.eval.every = 1
    cfg.checkpoint.every = 1
    return cfg
