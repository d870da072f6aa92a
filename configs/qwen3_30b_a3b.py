"""VinePPO with adapters, Qwen3-30B-A3B (a mixture of experts) on MATH, on v5p chips or eight H100.

    python -m vinejax.main --mode=plan --config=configs/qwen3_30b_a3b.py --config.topology=v5p:2x2x1
    python -m vinejax.main --config=configs/qwen3_30b_a3b.py --config.data.path=FOLDER

The first command says what a slice would hold and how fast it could be, without the slice.
`configs/qwen3_30b_a3b.py:all` trains all weights instead, the experts' and the routers' too.

Hardware: any row below, by arithmetic alone (docs/plan.md). None was run.
Reproduces: nothing. Values are of three continuations at the prompt's end and at eight other states
at most (docs/credit.md). Sampling, the KL and the size of an iteration are as in configs/paper.py
for DeepSeekMath 7B. The learning rate of adapters is ten times as high, as is usual
(https://thinkingmachines.ai/blog/lora). Whitening, warm-up, budgets of continuations and
`ppo.correction` have the defaults of VineJAX, which differ from the paper's (docs/engine.md).
Adapters are on attention alone, and no loss balances the experts.
"""

from pathlib import Path

from vinejax.config import default
from vinejax.core.errors import UserError


def get_config(trained="adapters"):
    if trained not in ("adapters", "all"):
        raise UserError(f"configs/qwen3_30b_a3b.py:{trained}: must be 'all', or nothing at all")
    cfg = default()
    cfg.model.path = "Qwen/Qwen3-30B-A3B-Base"
    cfg.model.architecture = str(Path(__file__).parent / "models" / "qwen3_30b_a3b.json")
    cfg.model.remat = "full"
    cfg.data.task = "vinejax.tasks.math"
    cfg.iterations = 1000
    cfg.kl.reduction = "sequence"
    cfg.sample.temperature = 0.6
    cfg.sample.top_p = 0.9
    cfg.sample.stop = ("\n\n\nProblem:",)
    cfg.values.k = 3
    cfg.values.num_states = 8
    cfg.values.reuse = True
    cfg.values.backup = True
    cfg.eval.every = 40
    if trained == "all":
        cfg.meshes["v5p:4x4x4"] = dict(fsdp=16, tensor=4, slots=6144, microbatch=16)
        cfg.meshes["v5p:2x4x4"] = dict(fsdp=8, tensor=4, slots=3072, microbatch=8)
        return cfg
    cfg.model.lora_rank = 32
    cfg.model.lora_targets = ("q", "k", "v", "out")
    cfg.optimizer.learning_rate = 1e-5
    cfg.meshes["v5p:2x2x1"] = dict(fsdp=1, tensor=4, slots=512, microbatch=4)
    cfg.meshes["v5p:4x4x4"] = dict(fsdp=16, tensor=4, slots=6144, microbatch=16)
    cfg.meshes["h100:8"] = dict(fsdp=2, tensor=4, slots=512, microbatch=8)
    return cfg
