"""Two VinePPO iterations on GSM8K with a trained Llama of 260,000 parameters.

    python -m vinejax.main --config=configs/gsm8k_tiny.py --workdir=runs/gsm8k_tiny

Start it in the folder of the repository: problems and model are those of tests/data. The model,
stories260K, was trained on children's stories and scores about 0: the point is that real text, a
real tokenizer and real weights go through every stage. About a minute on two CPU cores.
"""

from vinejax.config import default


def get_config():
    cfg = default()
    cfg.iterations = 2
    cfg.data.task = "vinejax.tasks.gsm8k"
    cfg.data.path = "tests/data/gsm8k"
    cfg.data.max_prompt_tokens = 256
    cfg.model.path = "tests/data/stories260K/hf"
    cfg.sample.temperature = 0.6
    cfg.sample.top_p = 0.9
    cfg.sample.max_tokens = 96
    cfg.sample.stop = ("\n\n\nProblem:",)
    cfg.rollout.prompts = 8
    cfg.rollout.per_prompt = 2
    cfg.rollout.slots = 64
    cfg.values.k = 3
    cfg.values.max_states = 25
    cfg.ppo.minibatch = 8
    cfg.ppo.microbatch = 4
    cfg.eval.every = 0
    cfg.eval.samples = 2
    cfg.eval.problems = 16
    return cfg
