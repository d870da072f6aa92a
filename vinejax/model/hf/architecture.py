"""Reads the architecture of a model from the config.json that `model.architecture` names."""

import os

from vinejax.core.errors import ModelError
from vinejax.model.decoder import Decoder, DecoderConfig
from vinejax.model.hf.families import SIZES, parse_config
from vinejax.model.hf.tensors import read_json
from vinejax.runtime.workdir import path_of

# Fields of `DecoderConfig` that a plan depends on -> fields of config.json that determine them.
PLANNED_FIELDS = SIZES | {
    "head_dim": "head_dim",
    "context": "max_position_embeddings",
    "windows": "sliding_window",
    "qkv_bias": "attention_bias",
    "out_bias": "attention_bias",
    "mlp_bias": "mlp_bias",
    "qk_norm": "model_type",
    "sandwich_norms": "model_type",
    "experts": "num_experts, num_experts_per_tok or the width of an expert",
}


def read_architecture(path: str | os.PathLike) -> DecoderConfig:
    """The architecture that the config.json `path` describes.

    Raises ModelError for a file that cannot be read, and for unsupported fields.
    """
    return parse_config(read_json(path_of(path)), os.fspath(path))


def check_architecture(path: str | os.PathLike, model: Decoder) -> None:
    """Raise ModelError for the first size in which the config.json `path` and a model differ.

    Without this check, a plan made from the file could describe another model than the run's.
    """
    declared_cfg = read_architecture(path)
    for ours, theirs in PLANNED_FIELDS.items():
        declared, loaded = getattr(declared_cfg, ours), getattr(model.cfg, ours)
        if declared != loaded:
            raise ModelError(
                f"model.architecture = {os.fspath(path)}: {theirs} gives {ours} = {declared}, but "
                f"the model that was loaded has {loaded}; correct it there, or unset "
                "model.architecture"
            )
