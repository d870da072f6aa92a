"""What all methods share for RhoMath 1.1B on GSM8K in the paper.

The runs are rho_gsm8k_<method>.py.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "rho_math.py")
    cfg.iterations = 650
    cfg.data.task = "vinejax.tasks.gsm8k"
    cfg.model.path = "realtreetune/rho-1b-sft-GSM8K"
    return cfg
