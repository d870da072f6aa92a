"""VinePPO, RhoMath 1.1B on GSM8K, on one GPU, on four or eight TPU chips or on a pod.

    python -m vinejax.main --mode=plan --config=configs/rho1b_gsm8k.py --config.topology=v5e:2x2
    python -m vinejax.main --config=configs/rho1b_gsm8k.py --config.data.path=FOLDER

Hardware: the rows of configs/rho1b_math.py; the same plan holds, as model, batches and lengths are
the same.
Reproduces: 53.4% pass@1 on the test split, the paper's VinePPO row, with its hyperparameters.
Departs: as configs/paper.py.
"""

from vinejax.config import from_file


def get_config():
    return from_file(__file__, "rho1b_math.py:gsm8k")
