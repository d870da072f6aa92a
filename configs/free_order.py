"""VinePPO on sums that are reduced in any order: vinejax/tasks/free_order.py, docs/tasks.md.

    python -m vinejax.main --config=configs/free_order.py [--config.method=grpo]

The argument is the number of sub-expressions beyond the first, 4 if there is none, as in
`configs/free_order.py:3`; the token budget follows it. One start, configs/free_order_start (100,000
parameters), serves 1 to 4: it was fine-tuned on demonstrations with each of them, in equal shares,
most of which have wrong values. At temperature 1 it solves 30%, 28%, 29% and 27% of the test
problems with 1, 2, 3 and 4 (two samples of each of 512 problems, 2026-11-22).

These commands make another in some fifteen minutes on two CPU cores; copy runs/start/warmup. The
one that ships had 300 updates more, at 1e-3, after `RIGHT` of the demonstrations had been lowered:

    python -m vinejax.main --config=configs/free_order.py --mode=sft --workdir=runs/first \\
        --config.model.path= --config.data.free_steps=none
    python -m vinejax.main --config=configs/free_order.py --mode=sft --workdir=runs/start \\
        --config.model.path=runs/first/warmup --config.data.free_steps=none
"""

import pathlib

from vinejax.config import from_file


def get_config(free_steps: str = "4"):
    cfg = from_file(__file__, "tiny.py")
    cfg.iterations = 60
    cfg.data.task = "vinejax.tasks.free_order"
    cfg.data.free_steps = int(free_steps)
    cfg.data.max_prompt_tokens = 48
    cfg.model.path = str(pathlib.Path(__file__).parent / "free_order_start")
    cfg.model.num_layers = 3
    cfg.model.ffn = 96
    cfg.model.context = 96
    cfg.sft.steps = 1000
    cfg.sample.max_tokens = 8 * int(free_steps) + 20
    cfg.rollout.prompts = 4
    cfg.ppo.minibatch = 32
    cfg.optimizer.learning_rate = 3e-4
    cfg.eval.every = 10
    return cfg
