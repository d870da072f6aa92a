"""The paper's runs: two models, two tasks and seven methods.

    python -m vinejax.main --config=configs/paper.py:rho,math,vineppo --config.data.path=FOLDER

The argument is model, task and method. FOLDER has the task's data (docs/tasks.md); GSM8K can be
downloaded instead.

Hardware: four devices of 80 GB for rho (RhoMath 1.1B) and eight for deepseek (DeepSeekMath 7B), as
the paper used. None of these runs was made here.
Reproduces: the paper's pass@1 on the test split, in %:

    method         rho,math   rho,gsm8k   deepseek,math   deepseek,gsm8k
    vineppo          23.0       53.4          46.0             80.1
    ppo              18.1       50.1          42.8             78.9
    grpo              -         44.6          36.4              -
    rloo              -         44.5          36.8              -
    restem           17.3       42.8          34.9             72.0
    dpo_positive     19.2       46.4          37.6             74.4
    sft              15.5       40.3          32.8             69.6

A dash: the paper's figure was not at hand.
Departs: as docs/engine.md says of all runs: the sampled token ids are trained on and nothing is
dropped; answers are graded strictly unless grader.mode='reference'. Besides:

- grpo, rloo: the paper does not state their settings. They have those of VinePPO, as the reference
  trains all methods with one trainer: the policy loss is a mean over tokens, the KL is summed over
  each sequence, and advantages are whitened over a minibatch, with their mean subtracted.
- restem: an iteration ends at the first validation that is no better than the one before. The
  paper trains all eight epochs and goes through the checkpoints afterwards, to the same policy.
- dpo_positive: long pairs are not filtered; what does not fit the context was never sampled.
- sft: the warm-up of the learning rate is linear. `--mode=export` then makes the folder that the
  other runs can start from.
"""

from vinejax.config import default
from vinejax.core.errors import UserError

# What differs from the settings that all runs share, which are in `get_config`.
TASKS = {
    "math": {"data.task": "vinejax.tasks.math", "iterations": 1000},
    "gsm8k": {"data.task": "vinejax.tasks.gsm8k", "iterations": 650},
}
# For plans, tokens of a prompt with its template: GSM8K's questions have 64 on average and
# OlympiadBench's 104 (the tokenizer of Mistral 7B); MATH was not at hand.
PROMPT_TOKENS = {"math": 150, "gsm8k": 100}
MODELS = {
    "rho": {"ppo.microbatch": 16, "mesh.data": -1},
    "deepseek": {"ppo.microbatch": 8, "mesh.fsdp": -1},
}
EVERY_ITERATION = {"eval.every": 1, "checkpoint.every": 1}
METHODS = {
    "vineppo": {"values.budget": "fresh"},
    "ppo": {},
    "grpo": {},
    "rloo": {},
    "restem": {"iterations": 10, **EVERY_ITERATION},
    "dpo_positive": {"iterations": 1, "rollout.per_prompt": 64},
    "sft": {"iterations": 2, "sft.reduction": "sequence", **EVERY_ITERATION},
}
FINE_TUNED = {  # on the task's own solutions: where all methods but sft start
    ("rho", "math"): "realtreetune/rho-1b-sft-MATH",
    ("rho", "gsm8k"): "realtreetune/rho-1b-sft-GSM8K",
    ("deepseek", "math"): "realtreetune/deepseekmath-7b-sft-MATH-v2",
    ("deepseek", "gsm8k"): "realtreetune/deepseekmath-7b-sft-GSM8K",
}
# What a method has for one task or one model only.
EXCEPTIONS = {
    ("gsm8k", "vineppo"): {"values.max_states": 25},
    ("gsm8k", "dpo_positive"): {"dpo.beta": 0.3},
    ("rho", "sft"): {"model.path": "microsoft/rho-math-1b-v0.1", "sft.learning_rate": 1e-5},
    ("deepseek", "sft"): {
        "model.path": "deepseek-ai/deepseek-math-7b-base",
        "sft.learning_rate": 5e-5,
    },
}


def get_config(run=""):
    model, task, method = (*run.split(","), "", "", "")[:3]
    for name, known in ((model, MODELS), (task, TASKS), (method, METHODS)):
        if name not in known:
            raise UserError(
                f"configs/paper.py:{run}: {name!r} is none of {', '.join(known)}; "
                "name model, task and method, as in configs/paper.py:rho,math,vineppo"
            )
    cfg = default()
    cfg.method = method
    cfg.model.path = FINE_TUNED[model, task]
    cfg.sample.temperature = 0.6
    cfg.sample.top_p = 0.9
    cfg.sample.stop = ("\n\n\nProblem:",)
    cfg.rollout.slots = 512
    if method not in ("dpo_positive", "restem", "sft"):  # which have losses of their own
        cfg.ppo.whiten = "minibatch"
        cfg.ppo.correction = "none"
        cfg.kl.reduction = "sequence"
    cfg.eval.every = 40
    if method != "sft":  # which does not read `optimizer`
        cfg.optimizer.warmup = "log"
    for fields in (
        TASKS[task],
        MODELS[model],
        METHODS[method],
        EXCEPTIONS.get((task, method), {}),
        EXCEPTIONS.get((model, method), {}),
    ):
        cfg.update_from_flattened_dict(fields)
    if "plan" in cfg:  # settings of vinejax/tools
        cfg.plan.prompt_tokens = PROMPT_TOKENS[task]
    return cfg
