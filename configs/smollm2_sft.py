"""Supervised start of SmolLM2-135M-Instruct on worked word problems, on a CPU.

    pip install -e '.[real]'
    python benchmarks/real/model.py models/smollm2
    python -m vinejax.main --config=configs/smollm2_sft.py --workdir=runs/smollm2_sft

It trains adapters, which are in configs/smollm2_start. An iteration is an epoch over 800 problems
of gsm_symbolic with their solutions, 140,000 tokens, about half an hour of one core; the same
command again goes on after the last whole one. It takes 6 GiB: passes have one row of 408 tokens,
which holds two or three solutions.
"""

from vinejax.config import default


def get_config():
    cfg = default()
    cfg.model.path = "models/smollm2"
    cfg.model.lora_rank = 8
    cfg.data.task = "vinejax.tasks.reasoning_gym"
    cfg.data.path = "gsm_symbolic"
    cfg.data.size = 800
    cfg.data.max_prompt_tokens = 160
    cfg.method = "sft"
    cfg.iterations = 2
    cfg.sft.batch = 8
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
