"""What all methods share for DeepSeekMath 7B on GSM8K in the paper.

The runs are deepseek_gsm8k_<method>.py.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "deepseek_math.py")
    cfg.iterations = 650
    cfg.data.task = "vinejax.tasks.gsm8k"
    cfg.model.path = "realtreetune/deepseekmath-7b-sft-GSM8K"
    return cfg
