"""Which devices a run has, and which layout of the configuration is meant for them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from vinejax.errors import ConfigError
from vinejax.runtime.distributed import check_hosts
from vinejax.runtime.topology import match, parse
from vinejax.settings import Config, MeshConfig


def on_devices(cfg: Config) -> Config:
    """The configuration with the mesh, slots, memory and microbatch that these devices are to have.

    That is the row of `meshes` which `topology` names or, without a name, the devices match. Where
    `meshes` is empty, or `mesh` is set and no topology is named, the configuration stays as it is.

    Raises:
      ConfigError: the topology has no row, or is not what the devices are; or there are rows and
        the devices match none.
      UserError: the devices belong to other hosts than were found: see `check_hosts`.
    """
    devices = jax.devices()
    check_hosts()
    found = match(devices[0].device_kind, len(devices), cfg.meshes)
    if cfg.topology:
        check_same(cfg.topology, devices)
        return with_row(cfg, cfg.topology)
    if not cfg.meshes or cfg.mesh != MeshConfig():
        return cfg
    if found is None:
        rule = (
            f"none of {', '.join(cfg.meshes)} is what was found, {len(devices)} x "
            f"{devices[0].device_kind}; add a row, or set mesh.data, mesh.fsdp or mesh.tensor (-1: "
            "all devices)"
        )
        raise ConfigError("meshes", rule)
    return with_row(cfg, found)


def with_row(cfg: Config, topology: str) -> Config:
    """The configuration as the row of `meshes` for this topology has it.

    A topology without a row takes `mesh` as it is, if that is set. Raises ConfigError otherwise.
    """
    parse(topology)
    if topology not in cfg.meshes:
        if cfg.mesh != MeshConfig():
            return cfg
        known = f"rows are {', '.join(cfg.meshes)}" if cfg.meshes else "there are none"
        rule = f"has no row in `meshes` ({known}); add one, or set mesh.fsdp and mesh.tensor"
        raise ConfigError("topology", rule, repr(topology))
    row, rollout, ppo = cfg.meshes[topology], cfg.rollout, cfg.ppo
    if row.slots is not None:
        rollout = dataclasses.replace(rollout, slots=row.slots)
    if row.memory_gib is not None:
        rollout = dataclasses.replace(rollout, memory_gib=row.memory_gib)
    if row.microbatch is not None:
        ppo = dataclasses.replace(ppo, microbatch=row.microbatch)
    mesh = MeshConfig(row.data, row.fsdp, row.tensor)
    return dataclasses.replace(cfg, mesh=mesh, rollout=rollout, ppo=ppo)


def check_same(topology: str, devices: Sequence[Any]) -> None:
    """ConfigError unless the devices are what `topology` names."""
    if match(devices[0].device_kind, len(devices), [topology]) is None:
        rule = f"is not what was found, {len(devices)} x {devices[0].device_kind}; leave it empty"
        raise ConfigError("topology", rule, repr(topology))


def use_compile_cache(folder: str) -> None:
    """Keeps compiled programs in `folder`, a path or gs://, for later starts; "": no change."""
    if folder:
        jax.config.update("jax_compilation_cache_dir", folder)
