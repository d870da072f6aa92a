"""VinePPO on a pretrained model, on a laptop: SmolLM2-135M-Instruct on word problems.

    pip install -e '.[real]'
    python benchmarks/real/model.py models/smollm2
    python benchmarks/real/problems.py data/alice
    python -m vinejax.main --config=configs/alice.py:sft --workdir=runs/alice_start
    python -m vinejax.main --config=configs/alice.py          # or, say, configs/alice.py:grpo

The model has to find which number a question is about, and add one: benchmarks/real/problems.py.
The start has seen 32 solutions twice, in half a minute of training; the fourth command takes four
minutes with its evaluations. It solves half of the problems at temperature 0.35 and a sixth at 0.8.

Validation accuracy (128 problems, temperature 0.35), 64 solutions an iteration, each run on a core
of its own (jax 0.10.2; benchmarks/real/runs.jsonl and controls.jsonl, drawn by curves.py):

  iteration          0   10   20   30   40   50   60   test, before and after (95%)
  2026-11-26 and 27
  vineppo, seed 1   58   77   80   90   97   98  100   50 to 99 (97 to 100)
  vineppo, seed 2   55   78   80   85   94             47 to 88 (81 to 93)
  vineppo, seed 3   57   82   78   95   98             51 to 98 (95 to 100)
  vineppo, seed 42  52   74
  grpo, seed 1      58   65   77   77   77   77   77   50 to 75 (67 to 82)
  grpo, seed 2      55   77   79   79   78             47 to 76 (68 to 83)
  grpo, seed 3      57   77   77   80   79             51 to 76 (68 to 83)
  rloo, seed 1      58   80   77   81   80             50 to 73 (65 to 80)
  rloo, seed 2      55   77   77   80   81             47 to 77 (70 to 84)
  rloo, seed 3      57   77                            51 to 73 (66 to 81)
  ppo, seed 1       58   77                            50 to 71 (63 to 79)
  ppo, seed 2       55   72                            47 to 71 (63 to 78)
  ppo, seed 3       57   81                            51 to 77 (69 to 84)
  grpo 4x16, seed 2 55   79   81   81                  47 to 77 (69 to 84)
  2026-11-29, controls.py --table
  vineppo, seed 1   58   75   77   77   77             50 to 75
  vineppo, seed 2   55   77   79   80   80             47 to 77
  vineppo, seed 3   57   79   80   85   95             51 to 90
  no steps, seed 1  58   80   80   91  100             50 to 100
  no steps, seed 2  55   77   77   77   77             47 to 76
  no steps, seed 3  57   75   77   80   80             51 to 74
  grpo, seed 1      58   80   83   84   92             50 to 84
  grpo, seed 2      55   77   77   77   77             47 to 73
  grpo, seed 3      57   77   77   78   78             51 to 75
  rloo, whitened, 1 58   75   77   77   78             50 to 74
  rloo, whitened, 2 55   77   81   83   94             47 to 94
  rloo, whitened, 3 57   72   77   81   82             51 to 80
  not whitened, 1   58   79   77   85   87             50 to 81
  not whitened, 2   55   77   77   80   80             47 to 77
  not whitened, 3   57   79   76   77   78             51 to 75
  no probe, seed 1  58   78   77   77   84             50 to 74
  no probe, seed 2  55   77   80   84   90             47 to 85
  no probe, seed 3  57   75   78   80   81             51 to 77

Runs with fewer figures were ended there. 'grpo 4x16' has 16 solutions of each of four problems, and
'no steps' is VinePPO whose only state is the prompt (--config.values.merge=1000
--config.values.num_states=None); 'rloo, whitened' has --config.ppo.whiten=iteration, and VinePPO
'not whitened' --config.ppo.whiten=none and with 'no probe' --config.values.prior=''. Test is that
of the checkpoint with the best validation.

That step credit helps here is not shown. The probability P that a run of VinePPO is better (95%,
Newcombe's interval), from the tests of 2026-11-29, is 0.56 (0.18 to 0.87) against 'no steps', 0.44
(0.13 to 0.82) against whitened RLOO, 0.56 (0.18 to 0.87) against itself not whitened, 0.61 (0.21 to
0.90) against 'no probe' and 0.72 (0.28 to 0.94) against GRPO; from six runs each of both dates the
last is 0.86 (0.52 to 0.97). The nine runs with step credit of that date are better than the nine
without with P 0.54 (0.30 to 0.77), and the twelve that are whitened than the other six with P 0.60
(0.33 to 0.81): groupings that were chosen after the runs. The same settings and seed ended at 99
and at 75, at 88 and at 77, and at 98 and at 90. On one machine the code of both dates gives the
same first iteration of seed 2 to the bit, and in the next two the same solutions, with metrics that
differ in the seventh digit: rounding, which sooner or later draws another token, parts such runs.
The rows of seed 1 had another length, too. After ten iterations of the earlier runs the methods do
not differ: P of validation is 0.89 (0.40 to 0.99) against GRPO, 0.67 (0.24 to 0.92) against RLOO
and 0.72 (0.28 to 0.94) against PPO. Intervals of the start's accuracies reach from 38 to 66. An
iteration took 67 seconds with VinePPO and 56 with GRPO; on another machine, beside other work,
VinePPO 120, GRPO and RLOO 63 to 97, PPO 105 to 153. VinePPO's and GRPO's first runs of seed 1 had
rows of 128 tokens. A run takes 7.6 GiB. With critic.head_scale=1 and five iterations of the critic
alone PPO fell from 58 to 44. Of 256 test problems of GSM8K the start solves 2.0% (0.4 to 3.9), 40
iterations of VinePPO's seed 2 later it is 1.6% (0.4 to 3.1): nothing carries over.

Runs differ in the quarter of the questions that name the sisters first, where a run may keep taking
the other number: soon all eight solutions of such a problem do, with equal rewards and no gradient.
Of 37 test problems of this kind the runs of 2026-11-29 solve, in the table's order, 5, 8, 24, 37,
6, 5, 35, 7, 5, 6, 30, 12, 35, 7, 6, 13, 18 and 8; GRPO's seed 1 and unwhitened VinePPO's, which
solve 35, take the other number in 19 of the 33 that name the sisters second. Of their own samples
of this kind in iterations 36 to 40 the earlier runs solved 91% and 46% (VinePPO's seeds 3 and 2),
4% and 15% (GRPO's seeds 2 and 3) and 57% and 20% (RLOO's seeds 1 and 2). Continuations seldom
rescue a problem whose solutions are all wrong (4 of 52), and 16 solutions of a problem do not help
GRPO. A solution has 2.6 steps at first, one after 60 iterations of seed 1, 1.8 and 2.3 after 40 of
seeds 2 and 3.
Solutions and advantages in the first and in the eighth iteration of seed 2 (V by one continuation,
by role):

  Jessica has 6 sisters and she also has 1 brothers. How many sisters does William's brother have?
    V = 0  Johnessica has 1 sisters, which is 1 * 2 = 2 sisters.                0.00
    V = 0  William has 2 + 1 = 3 sisters, which is 2 + 1 = 3 sisters. ####      0.00   R = 0

  Linda has 7 sisters and she also has 1 brothers. How many sisters does Michael's brother have?
    V = 0  John has 7 sisters. Yours has 7 + 1 = 8 sisters.                    +0.37
    V = 1  John has 8 - 1 = 7 sisters.                                         +0.02
    V = 1  Michael has 8 - 1 = 7 sisters. ####                                 -0.20   R = 0

After 16 iterations: "Susan has 5 sisters. Susan has 5 + 1 = 6 sisters. #### 6".

The credit bench at the start (--mode=credit, 8 problems, 384 reference solutions, whose own squared
error is 0.52, six repeats of 64 solutions, a core for 71 minutes, 2026-11-27): solutions have 36
tokens, a trained token costs 2.6 sampled ones, 95% intervals over repeats. `run` is this file's.

                squared error     cosine  tokens  seconds  cost in seconds  rank of values
  rloo           6.6 (4.2 to 10)   0.36     36      1.44    1                0.47
  vineppo_k1     6.4 (3.7 to 15)   0.36     62      2.46    1.66 (0.8 to 5.8)  0.67
  run            4.9 (3.4 to 6.5)  0.42     63      2.85    1.46 (1.1 to 1.9)  0.54 (4 states)
  exact, K = 8   1.6 (one repeat)  0.62    241      5.56    0.42             0.72

One continuation a state does not pay there; that eight might rests on one repeat. With these
settings (--config.bench.problems=8, .reference=384, .repeats=6, .exact=1, .truth=8, .states=32,
.ranked=6, .estimators="('rloo','vineppo_k1','run','exact')") most intervals are wide.

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
