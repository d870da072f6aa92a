"""The weights that a policy starts from: those of a Hugging Face folder, or of another run.

`model.path` may name the workdir of a run. Then the weights are those of its policy that validation
chose, and architecture and tokenizer those of the folder that the run itself started from.
"""

import json
import os
from typing import Any

from etils import epath
from jax.sharding import Mesh

from vinejax.errors import ModelError
from vinejax.model.decoder import Decoder, Params
from vinejax.model.hf.hub import find_folder
from vinejax.model.hf.weights import load_pretrained
from vinejax.runtime.checkpoint import find_trained, restore_policy
from vinejax.runtime.distributed import is_writer
from vinejax.text import Tokenizer

WARM_UP = "warmup"  # of the workdir of a run without `model.path`: its start


def load_weights(path: str, mesh: Mesh) -> tuple[Decoder, Params, Tokenizer]:
    """Model, parameters and tokenizer of `model.path`; a line says which checkpoint they are from.

    Raises ModelError for a run without a checkpoint, and what `load_pretrained` and
    `restore_policy` raise.
    """
    model, params, tokenizer = load_pretrained(model_folder(path), mesh=mesh)
    if (run := _run_at(path)) is None:
        return model, params, tokenizer
    checkpoint = find_trained(run, "best")
    if checkpoint is None:
        raise ModelError(f"{path}: a run without a checkpoint; name the model that it started from")
    params, source = restore_policy(run / checkpoint[0], params)
    if is_writer():
        print(f"starts from {source} of the run {path}")
    return model, params, tokenizer


def model_folder(path: str) -> str:
    """The Hugging Face folder, or hub name, of `model.path`; for a run, of what it started from.

    Raises ModelError for a run whose record is damaged.
    """
    if (run := _run_at(path)) is None:
        return os.fspath(find_folder(path))
    try:
        of_run = _read(run / "config.json")["config"]["model"]["path"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: the config.json of this run is damaged") from error
    return model_folder(of_run or os.fspath(run / WARM_UP))


def _run_at(path: str) -> epath.Path | None:
    """The workdir, if a path names one."""
    folder = epath.Path(os.path.expanduser(path))
    file = folder / "config.json"
    try:
        return folder if file.exists() and "git_revision" in _read(file) else None
    except (OSError, ValueError, TypeError, ImportError):
        return None  # `find_folder` says what is wrong


def _read(file: epath.Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
