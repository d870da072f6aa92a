from vinejax.config import default


def get_config():
    cfg = default()
    cfg.iterations = 40
    cfg.model.compute_dtype = "float32"
    cfg.model.num_layers = 3
    cfg.model.width = 64
    cfg.model.num_heads = 4
    cfg.model.num_kv_heads = 2
    cfg.model.ffn = 192
    cfg.model.context = 96
    cfg.sample.max_tokens = 48
    cfg.rollout.prompts = 32
    cfg.rollout.per_prompt = 4
    cfg.rollout.slots = 128
    cfg.values.k = 5
    cfg.ppo.minibatch = 64
    cfg.optimizer.learning_rate = 3e-4
    cfg.eval.samples = 2
    cfg.eval.problems = 128
    cfg.sft.steps = 600
    cfg.sft.batch = 64
    cfg.sft.learning_rate = 3e-3
    return cfg
