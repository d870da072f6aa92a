"""VinePPO, DeepSeekMath 7B on MATH, as in the paper.

    python -m vinejax.main --config=configs/paper/deepseek_math_vineppo.py \\
        --config.data.path=FOLDER

Hardware: eight devices of 80 GB, as the paper used; not run here.
Reproduces: 46.0% pass@1 on the test split, the paper's VinePPO row.
Departs: the sampled token ids are trained on and nothing is dropped (README.md has the rest);
answers are graded strictly unless grader.mode='reference'.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "deepseek_math.py")
    cfg.values.budget = "fresh"
    return cfg
