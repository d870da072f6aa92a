"""VinePPO where two forks decide among free lines: vinejax/tasks/bifurcation.py, docs/tasks.md.

    python -m vinejax.main --config=configs/bifurcation.py [--config.method=grpo]

The argument is the number of free lines, 12 if there is none; `configs/bifurcation.py:24` is the
larger setting, and 0 leaves the forks alone. The token budget follows it: a right response fits,
and a dead end runs into it. One start, configs/bifurcation_start (61,000 parameters), serves all
numbers from 0 to 24: it was fine-tuned on demonstrations with each of them, in equal shares. At
temperature 1 it solves 29%, 28%, 27% and 26% of the test problems with 0, 4, 12 and 24 free lines
(two samples of each of 512 problems, 2026-11-22); after the first fork, taken right, 50% to 55%,
and after both 99%.

This command made the start, in some five minutes on two CPU cores; copy runs/start/warmup:

    python -m vinejax.main --config=configs/bifurcation.py --mode=sft --workdir=runs/start \\
        --config.model.path= --config.data.free_steps=none
"""

import pathlib

from vinejax.config import from_file


def get_config(free_lines: str = "12"):
    cfg = from_file(__file__, "tiny.py")
    cfg.iterations = 60
    cfg.data.task = "vinejax.tasks.bifurcation"
    cfg.data.free_steps = int(free_lines)
    cfg.data.max_prompt_tokens = 16
    cfg.model.path = str(pathlib.Path(__file__).parent / "bifurcation_start")
    cfg.model.num_layers = 2
    cfg.model.width = 48
    cfg.model.ffn = 144
    cfg.model.context = 160
    cfg.sft.steps = 1500
    cfg.sft.batch = 32
    cfg.sample.max_tokens = 3 * int(free_lines) + 18
    cfg.rollout.prompts = 4
    cfg.ppo.minibatch = 32
    cfg.optimizer.learning_rate = 6e-4
    cfg.eval.every = 10
    return cfg
