"""Single-stream policy optimization on the tiny task: one solution per problem, tracked values.

    python -m vinejax.main --config=configs/contrib/tiny_single_stream.py

The equation and its source: vinejax/contrib/methods/README.md.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "../tiny.py")
    cfg.method = "single_stream"
    cfg.rollout.prompts = 256
    cfg.rollout.per_prompt = 1
    cfg.kl.coef = 0.0
    return cfg
