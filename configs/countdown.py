"""VinePPO on the countdown game: vinejax/tasks/countdown.py, docs/tasks.md.

    python -m vinejax.main --config=configs/countdown.py [--config.method=grpo]

The argument is the number of numbers beyond two, 1 if there is none: problems of three numbers;
`configs/countdown.py:2` has four. The token budget follows it. No start ships: a run begins with
the supervised warm-up, in its workdir. This command makes a start for several runs, in some ten
minutes on two CPU cores; `--config.model.path=runs/start/warmup` then names it:

    python -m vinejax.main --config=configs/countdown.py --mode=sft --workdir=runs/start \\
        --config.data.free_steps=none
"""

from vinejax.config import from_file


def get_config(free_steps: str = "1"):
    cfg = from_file(__file__, "tiny.py")
    cfg.iterations = 60
    cfg.data.task = "vinejax.tasks.countdown"
    cfg.data.free_steps = int(free_steps)
    cfg.data.max_prompt_tokens = 24
    cfg.model.path = ""
    cfg.model.num_layers = 2
    cfg.model.ffn = 128
    cfg.model.context = 96
    cfg.sft.steps = 1000
    cfg.sample.max_tokens = 16 * int(free_steps) + 20
    cfg.rollout.prompts = 4
    cfg.ppo.minibatch = 32
    cfg.optimizer.learning_rate = 3e-4
    cfg.eval.every = 10
    return cfg
