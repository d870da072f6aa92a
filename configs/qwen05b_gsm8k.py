"""VinePPO with adapters, Qwen2.5 0.5B on GSM8K, on one GPU of 24 GB or eight v5e chips.

    python -m vinejax.main --config=configs/qwen05b_gsm8k.py:sft
    python -m vinejax.main --config=configs/qwen05b_gsm8k.py

The first command teaches the base model the format of the answers, on the worked solutions; the
second starts from its best policy. Both train adapters of rank 32 on all projections and need the
`datasets` package, or `--config.data.path=FOLDER`; `--config.topology=v5e:2x4 --mode=plan` plans.

Hardware: any row below; a plan says what it takes (docs/models.md#adapters). None was run.
Reproduces: nothing. Values are of three continuations at the prompt's end and at eight other states
at most (docs/credit.md). Sampling and the KL are as in configs/paper.py for RhoMath 1.1B. A run is
smaller: 300 iterations of 32 problems, and responses of at most 512 tokens. The learning rate is
ten times as high, as is usual for adapters (https://thinkingmachines.ai/blog/lora). Whitening,
warm-up, budgets of continuations and `ppo.correction` have the defaults of VineJAX, which differ
from the paper's (docs/engine.md).
"""

from pathlib import Path

from vinejax.config import default
from vinejax.core.errors import UserError

SFT = "runs/qwen05b_gsm8k_sft"  # the workdir of the first command


def get_config(stage="train"):
    if stage not in ("sft", "train"):
        raise UserError(f"configs/qwen05b_gsm8k.py:{stage}: must be 'sft', or nothing at all")
    cfg = default()
    cfg.model.architecture = str(Path(__file__).parent / "models" / "qwen2.5_0.5b.json")
    cfg.model.lora_rank = 32
    cfg.model.remat = "full"
    cfg.data.task = "vinejax.tasks.gsm8k"
    cfg.data.max_prompt_tokens = 512
    cfg.sample.max_tokens = 512
    cfg.sample.stop = ("\n\n\nProblem:",)
    cfg.ppo.microbatch = 8
    cfg.eval.problems = 256
    cfg.eval.temperature = 0.35
    cfg.eval.top_p = 0.9
    cfg.optimizer.weight_decay = 0.0
    cfg.meshes["rtx4090:1"] = dict(microbatch=16)
    cfg.meshes["h100:1"] = dict(microbatch=16)
    cfg.meshes["v5e:2x4"] = dict(data=8, slots=2048, microbatch=64)
    if stage == "sft":
        cfg.model.path = "Qwen/Qwen2.5-0.5B"
        cfg.method = "sft"
        cfg.iterations = 2
        cfg.sft.learning_rate = 1e-4
        cfg.eval.every = 1
        cfg.checkpoint.every = 1
        return cfg
    cfg.model.path = SFT
    cfg.iterations = 300
    cfg.optimizer.learning_rate = 1e-5
    cfg.kl.reduction = "sequence"
    cfg.sample.temperature = 0.6
    cfg.sample.top_p = 0.9
    cfg.rollout.prompts = 32
    cfg.values.k = 3
    cfg.values.num_states = 8
    cfg.values.reuse = True
    cfg.values.backup = True
    cfg.eval.every = 10
    return cfg
