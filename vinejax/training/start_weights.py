"""Loads the weights that a policy starts from: a Hugging Face folder, a run, or adapters.

`model.path` may name the workdir of a run. Then the weights are those of the policy that validation
chose there; architecture and tokenizer are those of the folder that the run itself started from.
`model.path` may also name a folder of PEFT's with adapters, which are added to the model that they
were trained on. A tokenizer in that folder takes the place of the model's, because the adapters may
have been trained with another chat template or EOS.
"""

import dataclasses
import json
import os
from typing import Any, NamedTuple

import jax
from etils import epath
from jax.sharding import Mesh

from vinejax.core.errors import ModelError, UserError
from vinejax.core.settings import ModelConfig
from vinejax.core.text import Tokenizer
from vinejax.model.decoder import Decoder, Params
from vinejax.model.hf.hub import find_folder
from vinejax.model.hf.names import abstract_params
from vinejax.model.hf.peft import base_of, read_adapters
from vinejax.model.hf.weights import load_model, load_pretrained, tokenizer_for
from vinejax.model.lora import abstract_adapters, merge_adapters, with_adapters
from vinejax.model.sharding import check_heads, param_shardings, placed_shapes
from vinejax.runtime.checkpoint import find_trained, restore_policy
from vinejax.runtime.distributed import is_writer
from vinejax.runtime.workdir import resolved_folder

WARM_UP = "warmup"  # folder of the start, in the workdir of a run without `model.path`


def load_weights(
    path: str, mesh: Mesh, dtype: str = "float32", use: str = "starts from"
) -> tuple[Decoder, Params, Tokenizer]:
    """Model, parameters and tokenizer at `path`.

    For a run, prints a line that begins with `use` and names the run's checkpoint.

    Raises ModelError for a run without a checkpoint, and what `load_pretrained`, `read_adapters`
    and `restore_policy` raise.
    """
    if (run := _run_at(path)) is None:
        folder = find_folder(path)
        if (base := base_of(folder)) is None:
            return load_pretrained(folder, dtype, mesh)
        model, params, tokenizer = load_weights(base, mesh, dtype, use)
        adapters = read_adapters(folder, model)
        adapters = jax.device_put(adapters, param_shardings(mesh, adapters))
        params = merge_adapters(with_adapters(params, adapters), scale=1.0)
        return model, params, _tokenizer_beside(folder, model, tokenizer)
    checkpoint = find_trained(run, "best")
    if checkpoint is None:
        raise ModelError(f"{path}: a run without a checkpoint; name the model that it started from")
    trained = load_trained(run, run / checkpoint[0], mesh, dtype)
    if is_writer():
        print(f"{use} {trained.source} of the run {path}")
    return trained.model, trained.params, trained.tokenizer


def chosen_checkpoint(path: str) -> str:
    """The checkpoint that `load_weights` takes of the run at `path`, such as 'best/12'.

    '' if `path` is no run, or a run without a checkpoint.
    """
    run = _run_at(path) if path else None
    checkpoint = find_trained(run, "best") if run is not None else None
    return f"{checkpoint[0]}/{checkpoint[1]}" if checkpoint else ""


def load_unweighted(path: str) -> tuple[Decoder, Tokenizer]:
    """The model and the tokenizer that `load_weights` gives for `path`, without the weights."""
    if (run := _run_at(path)) is not None:
        return load_unweighted(_start_of(run))
    folder = find_folder(path)
    if (base := base_of(folder)) is None:
        return load_model(folder)
    model, tokenizer = load_unweighted(base)
    return model, _tokenizer_beside(folder, model, tokenizer)


def _tokenizer_beside(adapters: epath.Path, model: Decoder, of_base: Tokenizer) -> Tokenizer:
    """The tokenizer in a folder of adapters, or that of their base model if there is none."""
    has_own = (adapters / "tokenizer.json").exists()
    return tokenizer_for(model.cfg, adapters) if has_own else of_base


class Trained(NamedTuple):
    """A policy that a run has trained."""

    model: Decoder
    params: Params  # all weights
    tokenizer: Tokenizer
    source: str  # the checkpoint's name
    settings: ModelConfig  # the run's settings `model`
    adapters: Params | None  # adapters on the weights that the run started from


def load_trained(
    run: epath.Path, checkpoints: epath.Path, mesh: Mesh, dtype: str = "float32"
) -> Trained:
    """The newest policy of `run` in the folder `checkpoints`.

    If the run trains adapters, they are merged into the weights that the run started from.
    """
    settings = _settings_of(run)
    if not settings.lora_rank:
        model, tokenizer = load_unweighted(_start_of(run))
        check_heads(mesh, *model.cfg.split_sizes)
        model = dataclasses.replace(model, mesh=mesh)
        like = placed_shapes(mesh, abstract_params(model), dtype)
        params, source = restore_policy(checkpoints, like)
        return Trained(model, params, tokenizer, source, settings, None)
    model, params, tokenizer = load_weights(_start_of(run), mesh, dtype)
    like = placed_shapes(mesh, abstract_adapters(model, settings))
    adapters, source = restore_policy(checkpoints, like)
    params = merge_adapters(
        with_adapters(params, adapters), settings.lora_alpha / settings.lora_rank
    )
    return Trained(model, params, tokenizer, source, settings, adapters)


def model_folder(path: str) -> str:
    """The Hugging Face folder of the model at `path`.

    If `path` is a run or a folder of adapters, the result is the Hugging Face folder of the model
    that they started from. Raises ModelError for a run whose record is damaged.
    """
    if (run := _run_at(path)) is not None:
        return model_folder(_start_of(run))
    folder = find_folder(path)
    base = base_of(folder)
    return os.fspath(folder) if base is None else model_folder(base)


def _start_of(run: epath.Path) -> str:
    """The `model.path` of a run, or the folder of its warm-up."""
    return _settings_of(run).path or os.fspath(run / WARM_UP)


def _settings_of(run: epath.Path) -> ModelConfig:
    try:
        settings: dict[str, Any] = _read(run / "config.json")["config"]["model"]
        settings["lora_targets"] = tuple(settings["lora_targets"])  # JSON has no tuples
        return ModelConfig(**settings)
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{run}: the config.json of this run is damaged") from error


def _run_at(path: str) -> epath.Path | None:
    """The absolute form of `path` if it is the workdir of a run; otherwise None."""
    try:
        folder = resolved_folder(path)
        file = folder / "config.json"
        return folder if file.exists() and "git_revision" in _read(file) else None
    except (OSError, ValueError, TypeError, ImportError, RecursionError, UserError):
        return None  # `find_folder` raises for such a path


def _read(file: epath.Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
