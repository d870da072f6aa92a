"""VinePPO, DeepSeekMath 7B on GSM8K, on a TPU slice or eight GPUs.

    python -m vinejax.main --mode=plan --config=configs/gsm8k7b.py --config.topology=v5e:16x16
    python -m vinejax.main --config=configs/gsm8k7b.py --config.data.path=FOLDER

Hardware: the rows of configs/math7b.py; the same plan holds, as model, batches and lengths are the
same.
Reproduces: 80.1% pass@1 on the test split, the paper's VinePPO row, with its hyperparameters.
Departs: as configs/paper.py.
"""

from vinejax.config import from_file


def get_config():
    return from_file(__file__, "math7b.py:gsm8k")
