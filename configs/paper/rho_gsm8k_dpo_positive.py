"""DPO-Positive, RhoMath 1.1B on GSM8K, as in the paper.

    python -m vinejax.main --config=configs/paper/rho_gsm8k_dpo_positive.py \\
        --config.data.path=FOLDER

Hardware: four devices of 80 GB, as the paper used; not run here.
Reproduces: 46.4% pass@1 on the test split, the paper's DPO-Positive row.
Departs: no filter of long pairs; what does not fit the context was never sampled.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "rho_gsm8k.py")
    cfg.method = "dpo_positive"
    cfg.iterations = 1
    cfg.rollout.per_prompt = 64
    cfg.dpo.beta = 0.3
    return cfg
