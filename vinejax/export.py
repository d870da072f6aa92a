"""`--mode=export`: the policy of a run as a Hugging Face folder."""

import os

import jax
from etils import epath

from vinejax.errors import WorkdirError
from vinejax.model.hf.names import abstract_params
from vinejax.model.hf.weights import load_model, save_pretrained
from vinejax.model.sharding import make_mesh, param_shardings
from vinejax.runtime.checkpoint import find_trained, restore_policy
from vinejax.runtime.devices import on_devices
from vinejax.runtime.distributed import barrier, is_writer
from vinejax.runtime.workdir import check_workdir
from vinejax.settings import Config
from vinejax.start import WARM_UP, model_folder

FOLDER = "export"  # of the workdir


def export_run(cfg: Config, path: str | os.PathLike, policy: str = "best") -> epath.Path:
    """Write a checkpoint's weights, in the float32 they were trained in, to `<workdir>/export`.

    `policy` 'best' is the checkpoint with the best validation accuracy, or the newest where none
    was better than the start; 'last' is the newest. Architecture and tokenizer are those that the
    run started from. Returns the folder. Raises WorkdirError if there is no checkpoint.
    """
    workdir, cfg = check_workdir(cfg, path), on_devices(cfg)
    checkpoint = find_trained(workdir, policy)
    if checkpoint is None:
        raise WorkdirError(f"{workdir}: holds no checkpoint to export; --mode=train makes one")
    folder = model_folder(cfg.model.path) if cfg.model.path else workdir / WARM_UP
    model, tokenizer = load_model(epath.Path(folder))
    abstract = abstract_params(model)
    like = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        abstract,
        param_shardings(make_mesh(cfg.mesh), abstract),
    )
    params, source = restore_policy(workdir / checkpoint[0], like)
    save_pretrained(workdir / FOLDER, model, params, tokenizer)
    if is_writer():
        print(f"{source} is now in {workdir / FOLDER}")
    barrier("the end")
    return workdir / FOLDER
