"""VinePPO on the countdown game: vinejax/tasks/countdown.py, docs/tasks.md.

    python -m vinejax.main --config=configs/countdown.py [--config.method=grpo]

The argument is the number of numbers beyond two, 1 if there is none: problems of three numbers;
`configs/countdown.py:2` has four. The token budget follows it. The start, configs/countdown_start
(82,000 parameters), was fine-tuned on problems of three numbers. At temperature 1 it solves 29% of
those of the test split (two samples of each of 512 problems, 2026-11-22), and none of four numbers.

Two commands made it, in some ten minutes on two CPU cores; copy runs/start/warmup:

    python -m vinejax.main --config=configs/countdown.py --mode=sft --workdir=runs/first \\
        --config.model.path= --config.sft.steps=1000
    python -m vinejax.main --config=configs/countdown.py --mode=sft --workdir=runs/start \\
        --config.model.path=runs/first/warmup
"""

import pathlib

from vinejax.config import from_file


def get_config(free_steps: str = "1"):
    cfg = from_file(__file__, "tiny.py")
    cfg.iterations = 60
    cfg.data.task = "vinejax.tasks.countdown"
    cfg.data.free_steps = int(free_steps)
    cfg.data.max_prompt_tokens = 24
    cfg.model.path = str(pathlib.Path(__file__).parent / "countdown_start")
    cfg.model.num_layers = 2
    cfg.model.ffn = 128
    cfg.model.context = 96
    cfg.sft.steps = 2000
    cfg.sample.max_tokens = 16 * int(free_steps) + 20
    cfg.rollout.prompts = 4
    cfg.ppo.minibatch = 32
    cfg.optimizer.learning_rate = 3e-4
    cfg.eval.every = 10
    return cfg
