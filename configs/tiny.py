"""VinePPO on the embedded arithmetic task, on any machine: no download, no accelerator.

    python -m vinejax.main --config=configs/tiny.py

It takes 2 to 3.5 minutes on two busy CPU cores. The start, configs/tiny_start (150,000 parameters),
was fine-tuned on hasty demonstrations (see vinejax/tasks/arithmetic.py) and solves 37% of the test
problems. VinePPO learns to work them out line by line, and ends near 90%: see README.md.

This command made the start, and makes another in some five minutes; copy runs/start/warmup:

    python -m vinejax.main --config=configs/tiny.py --mode=sft --workdir=runs/start \\
        --config.model.path=

With `--config.model.path=` and the default mode, a run begins with the warm-up, in its workdir.
"""

import pathlib

from vinejax.config import default


def get_config():
    cfg = default()
    cfg.iterations = 25
    cfg.data.max_prompt_tokens = 32
    cfg.model.path = str(pathlib.Path(__file__).parent / "tiny_start")
    cfg.model.compute_dtype = "float32"
    cfg.model.num_layers = 3
    cfg.model.width = 64
    cfg.model.num_heads = 4
    cfg.model.num_kv_heads = 2
    cfg.model.ffn = 192
    cfg.model.context = 96
    cfg.sft.steps = 1800
    cfg.sft.learning_rate = 3e-3
    cfg.sample.max_tokens = 48
    cfg.rollout.prompts = 32
    cfg.rollout.slots = 128
    cfg.optimizer.learning_rate = 1e-4
    cfg.eval.every = 5
    cfg.eval.samples = 4
    return cfg
