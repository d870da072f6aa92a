"""Chooses mesh, slots, memory, microbatch, remat and dtype for the devices of a run."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import jax

from vinejax.core.errors import ConfigError, UserError
from vinejax.core.settings import Config, MeshConfig
from vinejax.runtime.distributed import check_hosts, has_tpu
from vinejax.runtime.topology import match_topology, parse_topology

NO_TPU = {
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}


def found_devices() -> list[Any]:
    """The devices of all hosts. Raises UserError if there are none."""
    try:
        with _without_tpu():
            return jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter where no plugin has the platform
        platforms = os.environ.get("JAX_PLATFORMS", "")
        reason = " ".join(str(error).split()) or "no such platform is installed"
        remedy = "unset it, or see README for what to install"
        raise UserError(
            f"JAX_PLATFORMS={platforms}: jax finds no device: {reason}; {remedy}"
        ) from error


@contextlib.contextmanager
def _without_tpu() -> Iterator[None]:
    """On a machine without a TPU, sets environment variables that keep libtpu from printing lines.

    The exit of the context removes the variables again, because `num_hosts` reads the environment.
    """
    variables = (
        {} if has_tpu() else {name: x for name, x in NO_TPU.items() if name not in os.environ}
    )
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def host_memory() -> int:
    """The size of this machine's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def with_dtype(cfg: Config) -> Config:
    """The configuration with `model.compute_dtype` 'auto' replaced by the devices' dtype.

    The run records this dtype, so resuming on devices of another kind cannot change it. Raises
    UserError if there are no devices.
    """
    dtype = cfg.model.dtype_on(found_devices()[0].platform)
    return dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, compute_dtype=dtype))


def on_devices(cfg: Config) -> Config:
    """The configuration with the values of one row of `meshes`, such as the sizes of the mesh.

    The row is the one that `topology` names. If `topology` is empty, it is the row that matches the
    devices; in this case the configuration is unchanged if `meshes` is empty or `mesh` is set.

    Raises ConfigError if `topology` does not match the devices, or if the row does not exist.
    Raises UserError if there are no devices, or if the number of hosts is wrong (`check_hosts`).
    """
    devices = found_devices()
    check_hosts()
    kind = devices[0].device_kind
    row = match_topology(kind, len(devices), cfg.meshes)
    if cfg.topology:
        if match_topology(kind, len(devices), [cfg.topology]) is None:
            message = f"is not what was found, {len(devices)} x {kind}; leave it empty"
            raise ConfigError("topology", message, repr(cfg.topology))
        return with_row(cfg, cfg.topology)
    if not cfg.meshes or cfg.mesh != MeshConfig():
        return cfg
    if row is None:
        message = (
            f"none of {', '.join(cfg.meshes)} is what was found, {len(devices)} x {kind}; "
            "add a row, or set mesh.data, mesh.fsdp or mesh.tensor (-1: all devices)"
        )
        raise ConfigError("meshes", message)
    return with_row(cfg, row)


def with_row(cfg: Config, topology: str) -> Config:
    """The configuration with the values of the row of `meshes` for a topology.

    If there is no such row but `mesh` is set, the configuration is returned unchanged. Raises
    ConfigError if there is no such row and `mesh` is not set, or if `topology` is not the name of
    a topology.
    """
    parse_topology(topology)
    if topology not in cfg.meshes:
        if cfg.mesh != MeshConfig():
            return cfg
        known = f"rows are {', '.join(cfg.meshes)}" if cfg.meshes else "there are none"
        message = f"has no row in `meshes` ({known}); add one, or set mesh.fsdp and mesh.tensor"
        raise ConfigError("topology", message, repr(topology))
    row = cfg.meshes[topology]
    mesh = MeshConfig(row.data, row.fsdp, row.tensor)
    slots = row.slots or cfg.rollout.slots
    memory_gib = row.memory_gib or cfg.rollout.memory_gib
    rollout = dataclasses.replace(cfg.rollout, slots=slots, memory_gib=memory_gib)
    ppo = dataclasses.replace(cfg.ppo, microbatch=row.microbatch or cfg.ppo.microbatch)
    model = dataclasses.replace(cfg.model, remat=row.remat or cfg.model.remat)
    return dataclasses.replace(cfg, mesh=mesh, rollout=rollout, ppo=ppo, model=model)
