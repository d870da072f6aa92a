"""DPO-Positive, DeepSeekMath 7B on MATH, as in the paper.

    python -m vinejax.main --config=configs/paper/deepseek_math_dpo_positive.py \\
        --config.data.path=FOLDER

Hardware: eight devices of 80 GB, as the paper used; not run here.
Reproduces: 37.6% pass@1 on the test split, the paper's DPO-Positive row.
Departs: no filter of long pairs; what does not fit the context was never sampled.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "deepseek_math.py")
    cfg.method = "dpo_positive"
    cfg.iterations = 1
    cfg.rollout.per_prompt = 64
    return cfg
