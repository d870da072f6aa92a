"""SubPO on sets of letters, whose steps earn what they newly cover: contrib/examples/coverage.py.

    python -m vinejax.main --config=configs/contrib/coverage.py
    python -m vinejax.main --config=configs/contrib/coverage.py:reinforce++

A run begins with a warm-up on demonstrations, which pick sets at random.
"""

from vinejax.config import from_file


def get_config(method="vineppo"):
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = method
    cfg.iterations = 60
    cfg.data.task = "vinejax.contrib.examples.coverage"
    cfg.model.path = ""
    cfg.model.num_layers = 2
    cfg.model.width = 48
    cfg.model.ffn = 144
    cfg.sft.steps = 200
    cfg.sft.batch = 32
    cfg.sample.max_tokens = 6
    cfg.kl.coef = 0.0
    cfg.rollout.prompts = 64
    cfg.rollout.per_prompt = 4
    if method == "vineppo":
        cfg.values.k = 4
    cfg.optimizer.learning_rate = 1e-3
    cfg.eval.every = 10
    cfg.eval.temperature = 1.0
    cfg.eval.top_p = 1.0
    return cfg
