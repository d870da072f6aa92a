"""The run that is killed: six iterations, values in several waves, every second time an evaluation.

--config=tests/faults/settings.py:METHOD, with FAULTS_START the folder of a start
"""

import os
from typing import Any

from vinejax.config import default

METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "vineppo": {"values": {"k": 9, "allocation": "bisection", "reuse": True}},
    "ppo": {},
    "dapo": {"rollout": {"rounds": 2}},
}
SECTIONS: dict[str, dict[str, Any]] = {
    "data": {"task": "helpers.loop_cases", "max_prompt_tokens": 15},
    "model": {"compute_dtype": "float32"},
    "sample": {"max_tokens": 16, "temperature": 0.8},
    "rollout": {"prompts": 4, "per_prompt": 3, "slots": 32},
    "ppo": {"minibatch": 8, "microbatch": 4, "epochs": 2},
    "optimizer": {"learning_rate": 3e-4, "weight_decay": 0.01},
    "eval": {"every": 2, "samples": 2},
    "checkpoint": {"every": 3, "keep": 2},
    "log": {"vines": 8},
}


def get_config(method: str) -> Any:
    cfg: Any = default()
    cfg.method, cfg.iterations = method, 6
    cfg.model.path = os.environ["FAULTS_START"]
    for sections in (SECTIONS, METHODS[method]):
        for name, fields in sections.items():
            for field, value in fields.items():
                cfg[name][field] = value
    return cfg
