"""VinePPO on a pretrained model, on a laptop: SmolLM2-135M-Instruct on word problems.

    pip install -e '.[real]'
    python benchmarks/real/model.py models/smollm2
    python benchmarks/real/problems.py data/alice
    python -m vinejax.main --config=configs/alice.py:sft --workdir=runs/alice_start
    python -m vinejax.main --config=configs/alice.py          # or, say, configs/alice.py:grpo

The model has to find which number a question is about, and add one: benchmarks/real/problems.py.
The start has seen 32 solutions twice, in half a minute of training; the third command takes four
minutes with its evaluations. It solves half of the problems at temperature 0.35 and a sixth at 0.8.

Validation accuracy (128 problems, temperature 0.35, 95% intervals), one run each of 64 solutions an
iteration on a core of its own (2026-11-26, jax 0.10.2; rows of 128 tokens, slower ones than here):

  iteration                  0         10   20   30   40   50        60        test after 60
  vineppo, 67 seconds  58 (50 to 66)   77   80   90   97   98  100             99 (97 to 100)
  grpo, 56 seconds     58 (50 to 66)   65   77   77   77   77   77 (70 to 84)  75 (67 to 82)

The start's test accuracy is 50 (41 to 59). A quarter of the questions name the sisters first: there
GRPO goes on taking the other number, as soon all eight solutions of a problem do. VinePPO's
solutions shrink to one step, where its credit is that of a solution: one run of each says nothing
about step credit. A run takes 5.5 GiB.

Hardware: two CPU cores, 8 GiB. Reproduces: nothing.
"""

from vinejax.config import default


def get_config(method="vineppo"):
    cfg = default()
    cfg.model.path = "models/smollm2" if method == "sft" else "runs/alice_start"
    cfg.model.lora_rank = 8
    cfg.data.task = "vinejax.tasks.table"
    cfg.data.path = "data/alice"
    cfg.data.question = "question"
    cfg.data.answer = "answer"
    cfg.data.max_prompt_tokens = 64
    cfg.sample.max_tokens = 48
    cfg.method = method
    cfg.rollout.slots = 64
    cfg.ppo.microbatch = 1
    cfg.eval.problems = 128
    cfg.eval.samples = 1
    if method == "sft":
        cfg.ppo.microbatch = 4
        cfg.data.subset = "start"
        cfg.data.solution = "answer"
        cfg.iterations = 2
        cfg.sft.batch = 8
        cfg.sft.learning_rate = 5e-4
        cfg.eval.every = 2
        return cfg
    cfg.iterations = 60
    cfg.rollout.prompts = 8
    cfg.rollout.per_prompt = 8
    cfg.sample.temperature = 0.8
    cfg.ppo.minibatch = 64
    cfg.ppo.epochs = 1
    cfg.ppo.row_tokens = 512  # all solutions of a problem, and its prompt once
    cfg.kl.coef = 0.0
    cfg.optimizer.learning_rate = 3e-4
    cfg.eval.every = 10
    cfg.checkpoint.every = 5
    if method == "vineppo":
        cfg.values.k = 1
        cfg.values.spread = 4
        cfg.values.positions = "after"
        cfg.values.prior = "probe"
        cfg.credit.lam = 0.7
        cfg.credit.filter = 0.3
    return cfg
