"""VinePPO in an environment, where one of four moves decides: vinejax/tasks/doors.py.

    python -m vinejax.main --config=configs/doors.py
    python -m vinejax.main --config=configs/doors.py:grpo

A run begins with a warm-up on demonstrations, of about a minute on two CPU cores, after which half
of the episodes are right. The state before each move is valued by continuations, whose environments
are copies of the episode's.
"""

from vinejax.config import from_file


def get_config(method="vineppo"):
    cfg = from_file(__file__, "tiny.py")
    cfg.data.task = "vinejax.tasks.doors"
    cfg.data.max_prompt_tokens = 16
    cfg.model.path = ""
    cfg.model.num_layers = 2
    cfg.model.width = 48
    cfg.model.ffn = 144
    cfg.model.context = 64
    cfg.sft.steps = 300
    cfg.sft.batch = 32
    cfg.sample.max_tokens = 16
    cfg.env.observed = 24
    cfg.env.turn_tokens = 4
    cfg.method = method
    if method == "vineppo":
        cfg.values.positions = "turns"
    cfg.rollout.prompts = 16
    cfg.optimizer.learning_rate = 3e-4
    cfg.eval.every = 10
    return cfg
