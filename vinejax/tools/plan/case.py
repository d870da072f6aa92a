"""The input of a plan: configuration, method, model without weights, and topology."""

import dataclasses
import functools
import math
import os

import numpy as np
from etils import epath
from jax.sharding import AbstractMesh

from vinejax.config.sizes import with_fitting_minibatch
from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config
from vinejax.learner.packing import passes_for, with_sharing, with_single_rows
from vinejax.methods.base import Method
from vinejax.methods.compose import method_of
from vinejax.model.config import DecoderConfig, compute_as_set
from vinejax.model.decoder import Decoder
from vinejax.model.hf.architecture import read_architecture
from vinejax.model.hf.hub import cached_config
from vinejax.model.hf.peft import base_of
from vinejax.model.sharding import AUTO, AXES, check_heads, check_rows
from vinejax.runtime.devices import with_row
from vinejax.runtime.topology import Topology, parse_topology
from vinejax.runtime.workdir import path_of
from vinejax.tasks.base import load_task, shipped_tokenizer
from vinejax.training.start_weights import model_folder
from vinejax.training.startup import rows_per_pass
from vinejax.training.warmup import fresh_sizes


@dataclasses.dataclass(frozen=True)
class Case:
    """A run to plan. `open_case` makes it and checks that its parts are compatible."""

    cfg: Config  # with the topology's row of `meshes` and the choices of the method
    method: Method
    model: Decoder  # without weights and without a mesh
    topology: Topology

    @functools.cached_property
    def mesh(self) -> AbstractMesh:
        """The run's mesh as an abstract mesh, which has sizes of axes but no devices."""
        mesh = self.cfg.mesh
        return AbstractMesh((mesh.data, mesh.fsdp, mesh.tensor), AXES, axis_types=AUTO)

    @property
    def shards(self) -> int:
        """The number of shards into which sequences are divided, which is data · fsdp."""
        return self.cfg.mesh.data * self.cfg.mesh.fsdp

    @property
    def tensor(self) -> int:
        """Size of the mesh axis `tensor`."""
        return self.cfg.mesh.tensor

    @property
    def item_bytes(self) -> int:
        """Bytes of a number in the compute dtype."""
        return np.dtype(self.model.compute.dtype).itemsize

    @property
    def pass_rows(self) -> int:
        """The number of batch rows in one pass of an update, over all shards."""
        return passes_for(self.cfg, self.cfg.ppo.minibatch, self.mesh).rows

    @property
    def platform(self) -> str:
        """The name of the platform in jax: 'tpu', 'gpu' or 'cpu'."""
        if self.topology.is_tpu:
            return "tpu"
        return "cpu" if self.topology.kind == "cpu" else "gpu"

    @property
    def limit(self) -> int:
        """The bytes of memory per chip that a program may use."""
        return int(self.topology.chip.hbm_gib * 2**30)


def open_case(cfg: Config) -> Case:
    """Makes the case of a configuration, for the topology that its field `topology` names.

    Raises ConfigError or ModelError if the field is empty or the topology unknown, if the topology
    has no row in `meshes` and `mesh` is not set, if the mesh does not fit the number of chips, the
    model's heads or the rows of a pass, or if the model's sizes are not known.
    """
    if not cfg.topology:
        names = ", ".join(cfg.meshes) or "such as 'v5e:16x16'"
        raise ConfigError("topology", f"--mode=plan needs the name of what to plan for: {names}")
    topology = parse_topology(cfg.topology)
    cfg = with_full_mesh(with_row(cfg, cfg.topology), topology)
    method = method_of(cfg)
    case = Case(method.resolve(cfg), method, Decoder(model_sizes(cfg)), topology)
    compute = compute_as_set(cfg.model, case.model.cfg, case.platform)
    case = dataclasses.replace(case, model=Decoder(case.model.cfg, compute=compute))
    check_heads(case.mesh, *case.model.cfg.split_sizes)
    check_rows(case.mesh, rows_per_pass(cfg, method))
    cfg = with_fitting_minibatch(case.cfg, method, case.shards)
    cfg = with_sharing(cfg, case.model, case.platform)
    model = with_single_rows(case.model, cfg) if "paired_rows" not in method.flags else case.model
    return dataclasses.replace(case, cfg=cfg, model=model)


def with_full_mesh(cfg: Config, topology: Topology) -> Config:
    """The configuration with a mesh over all chips, where a size of -1 becomes the remaining chips.

    Raises ConfigError if the product of the sizes is not the number of chips.
    """
    sizes = {name: getattr(cfg.mesh, name) for name in AXES}
    fixed_sizes = math.prod(size for size in sizes.values() if size != -1)
    sizes = {n: max(topology.chips // fixed_sizes, 1) if x == -1 else x for n, x in sizes.items()}
    if math.prod(sizes.values()) != topology.chips:
        product = " x ".join(f"{name}={size}" for name, size in sizes.items())
        message = f"{product} must multiply to the {topology.chips} chips of {topology.name}"
        raise ConfigError(f"meshes.{topology.name}" if cfg.meshes else "mesh", message)
    return dataclasses.replace(cfg, mesh=dataclasses.replace(cfg.mesh, **sizes))


def model_sizes(cfg: Config) -> DecoderConfig:
    """The model's sizes, from `model.architecture` if this field is set, else from `model.path`.

    If neither field is set, the sizes are those of a fresh model. Raises ConfigError if
    `model.path`, or the base of its adapters, is no folder with a config.json, nor the name of a
    model on the hub whose config.json is in the local cache.
    """
    if cfg.model.architecture:
        return read_architecture(cfg.model.architecture)
    if cfg.model.path:
        folder = path_of(cfg.model.path)
        while folder.is_dir() and (base := base_of(folder)):
            folder = path_of(base)
        if folder.is_dir():  # in the workdir of a run, the folder of the model that it started from
            folder = epath.Path(model_folder(os.fspath(folder)))
        file = folder / "config.json"
        if not file.exists():
            file = cached_config(os.fspath(folder))
        if file is None:
            message = "is no folder with a config.json"
            if os.fspath(folder) != os.path.expanduser(cfg.model.path):
                message = f"has adapters on {os.fspath(folder)}, which {message}"
            message += "; name a copy of one in model.architecture"
            raise ConfigError("model.path", message, repr(cfg.model.path))
        return read_architecture(os.fspath(file))
    remedy = "name a model, or model.architecture"
    return fresh_sizes(cfg.model, shipped_tokenizer(load_task(cfg.data), remedy))
