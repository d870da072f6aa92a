"""PPO, DeepSeekMath 7B on MATH, as in the paper.

    python -m vinejax.main --config=configs/paper/deepseek_math_ppo.py \\
        --config.data.path=FOLDER

Hardware: eight devices of 80 GB, as the paper used; not run here.
Reproduces: 42.8% pass@1 on the test split, the paper's PPO row.
Departs: as README.md says of all runs; answers are graded strictly unless
grader.mode='reference'.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "deepseek_math.py")
    cfg.method = "ppo"
    return cfg
