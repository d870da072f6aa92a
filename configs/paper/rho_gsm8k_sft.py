"""SFT, RhoMath 1.1B on GSM8K, as in the paper.

    python -m vinejax.main --config=configs/paper/rho_gsm8k_sft.py \\
        --config.data.path=FOLDER

Hardware: four devices of 80 GB, as the paper used; not run here.
Reproduces: 40.3% pass@1 on the test split, the paper's SFT row.
Departs: the warm-up of the learning rate is linear. `--mode=export` then makes the folder that the
other configurations can start from.
"""

from vinejax.config import default, from_file


def get_config():
    cfg = from_file(__file__, "rho_gsm8k.py")
    cfg.method = "sft"
    cfg.optimizer = default().optimizer
    cfg.iterations = 2
    cfg.model.path = "microsoft/rho-math-1b-v0.1"
    cfg.sft.learning_rate = 1e-5
    cfg.sft.reduction = "sequence"
    cfg.eval.every = 1
    cfg.checkpoint.every = 1
    return cfg
