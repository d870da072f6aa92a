"""SFT, DeepSeekMath 7B on GSM8K, as in the paper.

    python -m vinejax.main --config=configs/paper/deepseek_gsm8k_sft.py \\
        --config.data.path=FOLDER

Hardware: eight devices of 80 GB, as the paper used; not run here.
Reproduces: 69.6% pass@1 on the test split, the paper's SFT row.
Departs: the warm-up of the learning rate is linear. `--mode=export` then makes the folder that the
other configurations can start from.
"""

from vinejax.config import default, from_file


def get_config():
    cfg = from_file(__file__, "deepseek_gsm8k.py")
    cfg.method = "sft"
    cfg.optimizer = default().optimizer
    cfg.iterations = 2
    cfg.model.path = "deepseek-ai/deepseek-math-7b-base"
    cfg.sft.learning_rate = 5e-5
    cfg.sft.reduction = "sequence"
    cfg.eval.every = 1
    cfg.checkpoint.every = 1
    return cfg
