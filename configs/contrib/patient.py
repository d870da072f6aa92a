"""VinePPO with a scripted patient: vinejax/contrib/examples/patient.py.

    python -m vinejax.main --config=configs/contrib/patient.py
    python -m vinejax.main --config=configs/contrib/patient.py:grpo

A run begins with a warm-up on demonstrations, which ask and diagnose at random.
"""

from vinejax.config import from_file


def get_config(method="vineppo"):
    cfg = from_file(__file__, f"../doors.py:{method}")
    cfg.data.task = "vinejax.contrib.examples.patient"
    cfg.model.context = 96
    cfg.sample.max_tokens = 40
    cfg.env.observed = 32
    cfg.env.turn_tokens = 10
    if method == "vineppo":
        cfg.values.k = 4
    return cfg
