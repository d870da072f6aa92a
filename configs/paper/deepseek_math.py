"""What all methods share for DeepSeekMath 7B on MATH in the paper.

The runs are deepseek_math_<method>.py.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "rho_math.py")
    cfg.model.path = "realtreetune/deepseekmath-7b-sft-MATH-v2"
    cfg.ppo.microbatch = 8
    cfg.mesh.data = 1
    cfg.mesh.fsdp = -1
    return cfg
