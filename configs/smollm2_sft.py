"""Supervised start of SmolLM2-135M-Instruct on worked word problems.

    pip install -e '.[real]'
    python benchmarks/real/model.py models/smollm2
    python -m vinejax.main --config=configs/smollm2_sft.py --workdir=runs/smollm2_sft

It trains adapters, which are in configs/smollm2_start. An iteration is an epoch over 8,000 problems
of gsm_symbolic with their solutions, 1.4 million tokens: 14 seconds of an H200 with
--config.ppo.microbatch=16 --config.rollout.slots=256, after a minute of compiling, or about five
hours of a CPU's core; the same command again goes on after the last whole one. Validation accuracy
after the three is 27%, 38% and 52%. On a CPU it takes 6 GiB: passes have one row of 408 tokens,
which holds two or three solutions.
"""

from vinejax.config import default


def get_config():
    cfg = default()
    cfg.model.path = "models/smollm2"
    cfg.model.lora_rank = 8
    cfg.data.task = "vinejax.tasks.reasoning_gym"
    cfg.data.path = "gsm_symbolic"
    cfg.data.size = 8000
    cfg.data.max_prompt_tokens = 160
    cfg.method = "sft"
    cfg.iterations = 3
    cfg.sft.batch = 32
    cfg.sft.learning_rate = 2e-3
    cfg.ppo.microbatch = 1
    cfg.sample.max_tokens = 256
    cfg.rollout.slots = 40
    cfg.eval.every = 1
    cfg.eval.samples = 1
    cfg.eval.problems = 40
    cfg.checkpoint.every = 1
    cfg.checkpoint.keep = 1
    return cfg
