"""GRPO, DeepSeekMath 7B on GSM8K, as in the paper.

    python -m vinejax.main --config=configs/paper/deepseek_gsm8k_grpo.py \\
        --config.data.path=FOLDER

Hardware: eight devices of 80 GB, as the paper used; not run here.
The paper's GRPO figure for this model and task was not at hand.
Departs: the paper does not state GRPO's settings; these are VinePPO's, as it trained all methods
with one trainer. Loss and KL are token means.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "deepseek_gsm8k.py")
    cfg.method = "grpo"
    return cfg
