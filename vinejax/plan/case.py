"""What is planned: a configuration, a model without weights, and chips that nobody has yet."""

import dataclasses
import functools
import math
import os

from etils import epath
from jax.sharding import AbstractMesh

from vinejax.errors import ConfigError
from vinejax.model.config import DecoderConfig, compute_as_set
from vinejax.model.decoder import Decoder
from vinejax.model.hf.architecture import read_architecture
from vinejax.model.sharding import AXES, check_heads, check_rows
from vinejax.runtime.devices import with_row
from vinejax.runtime.topology import Topology, parse
from vinejax.session import rows_per_pass
from vinejax.settings import Config
from vinejax.tasks.base import load_task


@dataclasses.dataclass(frozen=True)
class Case:
    """Made by `open_case`, which has checked that its parts go together."""

    cfg: Config  # with the mesh, slots and memory of the topology's row
    model: Decoder  # without a mesh of devices
    topology: Topology

    @functools.cached_property
    def mesh(self) -> AbstractMesh:
        """Its sizes, for arithmetic."""
        mesh = self.cfg.mesh
        return AbstractMesh((mesh.data, mesh.fsdp, mesh.tensor), AXES)

    @property
    def shards(self) -> int:
        """Places that sequences are split over."""
        return self.cfg.mesh.data * self.cfg.mesh.fsdp

    @property
    def tensor(self) -> int:
        return self.cfg.mesh.tensor

    @property
    def platform(self) -> str:
        """As jax names it."""
        if self.topology.is_tpu:
            return "tpu"
        return "cpu" if self.topology.kind == "cpu" else "gpu"

    @property
    def limit(self) -> int:
        """Bytes of a chip that programs may use."""
        return int(self.topology.chip.hbm_gib * 2**30)


def open_case(cfg: Config) -> Case:
    """The case that a configuration with a `topology` describes.

    Raises ConfigError or ModelError: no or an unknown topology, no row for it, a mesh that does not
    divide its chips, or the model's heads or the batch over it; no architecture to be had.
    """
    if not cfg.topology:
        known = ", ".join(cfg.meshes) or "such as 'v5e:16x16'"
        raise ConfigError("topology", f"--mode=plan needs the name of what to plan for: {known}")
    topology = parse(cfg.topology)
    cfg = filled(with_row(cfg, cfg.topology), topology)
    case = Case(cfg, Decoder(architecture(cfg)), topology)
    compute = compute_as_set(cfg.model, case.model.cfg, case.platform)
    case = dataclasses.replace(case, model=Decoder(case.model.cfg, compute=compute))
    check_heads(case.mesh, case.model.cfg.num_heads, case.model.cfg.ffn)
    check_rows(case.mesh, rows_per_pass(cfg))
    return case


def filled(cfg: Config, topology: Topology) -> Config:
    """The configuration with a mesh over all chips; the size of -1 takes what the others leave.

    Raises ConfigError where the sizes do not multiply to the number of chips.
    """
    sizes = {name: getattr(cfg.mesh, name) for name in AXES}
    others = math.prod(size for size in sizes.values() if size != -1)
    sizes = {n: max(topology.devices // others, 1) if x == -1 else x for n, x in sizes.items()}
    if math.prod(sizes.values()) != topology.devices:
        product = " x ".join(f"{name}={size}" for name, size in sizes.items())
        rule = f"{product} must multiply to the {topology.devices} chips of {topology.name}"
        raise ConfigError(f"meshes.{topology.name}" if cfg.meshes else "mesh", rule)
    return dataclasses.replace(cfg, mesh=dataclasses.replace(cfg.mesh, **sizes))


def architecture(cfg: Config) -> DecoderConfig:
    """Of `model.architecture`, else of the folder `model.path`, else of the fresh model.

    Raises ConfigError where the model is a name on the hub, whose sizes nobody here knows.
    """
    if cfg.model.architecture:
        return read_architecture(cfg.model.architecture)
    if cfg.model.path:
        file = epath.Path(cfg.model.path) / "config.json"
        if not file.exists():
            rule = "is no folder with a config.json; name a copy of one in model.architecture"
            raise ConfigError("model.path", rule, repr(cfg.model.path))
        return read_architecture(os.fspath(file))
    task = load_task(cfg.data)
    make_tokenizer = getattr(task, "tokenizer", None)
    if make_tokenizer is None:
        rule = f"task {task.name} ships no tokenizer; name a model, or model.architecture"
        raise ConfigError("model.path", rule)
    sizes = cfg.model
    return DecoderConfig(
        vocab_size=len(make_tokenizer()), num_layers=sizes.num_layers, width=sizes.width,
        num_heads=sizes.num_heads, num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.width // sizes.num_heads, ffn=sizes.ffn, context=sizes.context,
    )  # fmt: skip
