"""A model's sizes without its weights: the config.json that a configuration carries."""

import json
import os

from etils import epath

from vinejax.errors import ModelError
from vinejax.model.decoder import Decoder, DecoderConfig
from vinejax.model.hf.families import parse_config

# What a plan is computed from, by the names that config.json has for them.
PLANNED = {
    "num_layers": "num_hidden_layers",
    "width": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
    "vocab_size": "vocab_size",
    "context": "max_position_embeddings",
    "windows": "sliding_window",
    "tied_head": "tie_word_embeddings",
    "qkv_bias": "attention_bias",
    "out_bias": "attention_bias",
    "mlp_bias": "mlp_bias",
    "qk_norm": "model_type",
    "sandwich_norms": "model_type",
}


def read_architecture(path: str | os.PathLike) -> DecoderConfig:
    """The architecture that the config.json `path` describes; ModelError where it does not."""
    try:
        raw = json.loads(epath.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{os.fspath(path)}: cannot be read as a config.json: {error}") from None
    if not isinstance(raw, dict):
        raise ModelError(f"{os.fspath(path)}: must hold a JSON object, as a config.json does")
    return parse_config(raw, os.fspath(path))


def check_architecture(path: str | os.PathLike, model: Decoder) -> None:
    """ModelError naming the first field in which `path` and a loaded model are not of one size.

    Else the plan of a run would be that of another model.
    """
    declared = read_architecture(path)
    for ours, theirs in PLANNED.items():
        said, loaded = getattr(declared, ours), getattr(model.cfg, ours)
        if said != loaded:
            raise ModelError(
                f"model.architecture = {os.fspath(path)}: {theirs} gives {ours} = {said}, but the "
                f"model that was loaded has {loaded}; correct it there, or unset model.architecture"
            )
