"""What all methods share for RhoMath 1.1B on MATH in the paper; rho_math_<method>.py are the runs.

`data.path` is your own copy of MATH.
"""

from vinejax.config import default


def get_config():
    cfg = default()
    cfg.iterations = 1000
    cfg.data.task = "vinejax.tasks.math"
    cfg.model.path = "realtreetune/rho-1b-sft-MATH"
    cfg.sample.temperature = 0.6
    cfg.sample.top_p = 0.9
    cfg.sample.stop = ("\n\n\nProblem:",)
    cfg.rollout.slots = 512
    cfg.ppo.microbatch = 16
    cfg.ppo.whiten = "minibatch"
    cfg.kl.reduction = "sequence"
    cfg.optimizer.warmup = "log"
    cfg.mesh.data = -1
    cfg.eval.every = 40
    return cfg
