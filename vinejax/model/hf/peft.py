"""Adapters as a folder of PEFT's: adapter_config.json and adapter_model.safetensors.

A torch Linear that holds several projections (Phi-3's) gets one adapter whose rank is the sum of
theirs and whose B has a block for each. Its alpha grows in proportion, so that alpha / rank stays.
"""

import json
import os

import jax
import numpy as np
from etils import epath
from safetensors.numpy import save

from vinejax.core.settings import ModelConfig
from vinejax.model.decoder import LORA_A, LORA_B, Decoder, Params
from vinejax.model.hf.names import Source, param_sources
from vinejax.runtime.host_arrays import whole_array

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def save_adapters(
    path: epath.PathLike, model: Decoder, adapters: Params, settings: ModelConfig, base: str
) -> None:
    """Writes adapters that `peft.PeftModel.from_pretrained` puts on the model `base`; float32.

    Every process of a run must make the call; the first one writes.
    """
    layers = jax.tree.map(whole_array, adapters["layers"])
    members = _members(model, layers)
    weights: dict[str, np.ndarray] = {}
    for name, (rows, parts) in members.items():
        for layer in range(model.cfg.num_layers):
            factors = [(start, *_matrices(layers[part], layer)) for part, start in parts.items()]
            module = f"base_model.model.{name.format(layer)}"
            weights[f"{module}.lora_A.weight"] = np.concatenate([a for _, a, _ in factors])
            weights[f"{module}.lora_B.weight"] = _blocks(rows, [(s, b) for s, _, b in factors])
    if jax.process_index() > 0:
        return
    folder = epath.Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    parts_of = {name.rsplit(".", 1)[-1]: len(parts) for name, (_, parts) in members.items()}
    fused = {name: count for name, count in parts_of.items() if count > 1}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": settings.lora_rank,
        "lora_alpha": settings.lora_alpha,
        "target_modules": sorted(parts_of),
        "rank_pattern": {name: count * settings.lora_rank for name, count in fused.items()},
        "alpha_pattern": {name: count * settings.lora_alpha for name, count in fused.items()},
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    (folder / WEIGHTS).write_bytes(save(weights, metadata={"format": "pt"}))


def _members(model: Decoder, layers: Params) -> dict[str, tuple[int, dict[str, int]]]:
    """Maps a torch module, {} for the layer, to its rows and the first row of each projection."""
    modules: dict[str, tuple[int, dict[str, int]]] = {}
    sources: dict[str, Source] = {
        path[1]: source
        for path, source in param_sources(model).items()
        if path[0] == "layers" and path[-1] == "kernel" and path[1] in layers
    }
    for part, source in sorted(sources.items(), key=lambda pair: pair[1].start):
        name, _ = os.path.splitext(source.name)  # without '.weight'
        modules.setdefault(name, (source.shape[0], {}))[1][part] = source.start
    return modules


def _matrices(adapter: Params, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """A [rank, inputs] and B [outputs, rank] of a projection in a layer, as torch has them."""
    a, b = adapter[LORA_A][layer], adapter[LORA_B][layer]
    rank = a.shape[-1]
    return a.reshape(-1, rank).T.copy(), b.reshape(rank, -1).T.copy()


def _blocks(rows: int, parts: list[tuple[int, np.ndarray]]) -> np.ndarray:
    """[rows, sum of ranks] each part in its rows and in columns of its own, 0 elsewhere."""
    joined = np.zeros((rows, sum(b.shape[1] for _, b in parts)), np.float32)
    column = 0
    for start, b in parts:
        joined[start : start + len(b), column : column + b.shape[1]] = b
        column += b.shape[1]
    return joined
