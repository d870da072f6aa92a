"""A model behind OpenAI's HTTP interface, not trained here: docs/serve.md.

    pip install -e '.[serve]'
    python -m vinejax.main --mode=serve --config=configs/serve.py:models/smollm2

The argument is a Hugging Face folder, a hub name, a folder of adapters or the workdir of a run. A
run that is still training is better served by its own configuration, which finds newer weights:

    python -m vinejax.main --mode=serve --config=FILE --workdir=RUN

/v1/step_values compares answers as the task `table` does, as a mathematician. `data.path` stands
for such a table; no data is read.

Hardware: that of the model. Reproduces: nothing.
"""

from vinejax.config import default


def get_config(path="configs/tiny_start"):
    cfg = default()
    cfg.model.path = path
    cfg.data.task = "vinejax.tasks.table"
    cfg.data.path = "openai/gsm8k"
    cfg.data.template = "{question}"
    cfg.data.chat_template = True
    cfg.data.max_prompt_tokens = 1024
    cfg.sample.max_tokens = 512
    cfg.rollout.slots = 64
    return cfg
