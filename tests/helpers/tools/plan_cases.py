"""A model of two layers on small slices, for the tests of plans."""

import json
from pathlib import Path
from typing import Any

from vinejax.config.load import Fields, default, from_dict
from vinejax.tools.plan.case import Case, open_case

SMALL = {
    "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 40,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip


def small(folder: Path, topology: str = "h100:8", fields: dict[str, Any] | None = None) -> Case:
    """Two layers of width 8 on a mesh of 4 shards, 2 places each."""
    return open_case(from_dict(small_fields(folder, topology, fields)))


def small_fields(folder: Path, topology: str, fields: dict[str, Any] | None = None) -> Fields:
    file = folder / "config.json"
    file.write_text(json.dumps(SMALL))
    cfg = default()
    cfg.model.architecture = str(file)
    cfg.data.max_prompt_tokens, cfg.sample.max_tokens = 32, 32
    cfg.rollout.prompts, cfg.rollout.per_prompt, cfg.rollout.slots = 8, 4, 16
    cfg.ppo.minibatch, cfg.ppo.microbatch = 16, 8
    cfg.plan.steps = 4
    cfg.topology = topology
    cfg.meshes[topology] = dict(fsdp=4, tensor=2)
    cfg.update_from_flattened_dict(fields or {})
    return cfg
