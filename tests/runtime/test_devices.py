"""Tests the row of `meshes` that a run takes, the errors without one, and a device's memory."""

import os
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import pytest
from helpers.refusals import refuses
from jax.sharding import Mesh

from vinejax.config.load import default, from_dict
from vinejax.core.errors import UserError
from vinejax.core.settings import Config, MeshConfig, RolloutConfig, TopologyConfig
from vinejax.engine.memory import memory_to_use
from vinejax.runtime import devices, distributed

ROWS = {
    "v5e:16x16": TopologyConfig(fsdp=64, tensor=4, slots=2048, memory_gib=6.0),
    "cpu:8": TopologyConfig(data=2, fsdp=2, tensor=2),
    "h100:8": TopologyConfig(fsdp=8, microbatch=32, remat="dots"),
}


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch):
    def set_devices(kind: str, count: int) -> None:
        made = [SimpleNamespace(device_kind=kind)] * count
        monkeypatch.setattr(devices.jax, "devices", lambda: made)

    return set_devices


@pytest.mark.parametrize(
    "kind, count, row",
    [("TPU v5 lite", 256, "v5e:16x16"), ("cpu", 8, "cpu:8"),
     ("NVIDIA H100 80GB HBM3", 8, "h100:8")],
)  # fmt: skip
@pytest.mark.parametrize("named", [False, True])
def test_the_devices_choose_the_row(found, kind, count, row, named):
    found(kind, count)
    cfg = devices.on_devices(Config(meshes=ROWS, topology=row if named else ""))
    assert cfg.mesh == MeshConfig(ROWS[row].data, ROWS[row].fsdp, ROWS[row].tensor)
    assert cfg.rollout.slots == (ROWS[row].slots or RolloutConfig().slots)
    assert cfg.rollout.memory_gib == ROWS[row].memory_gib
    assert cfg.ppo.microbatch == ROWS[row].microbatch
    assert cfg.model.remat == (ROWS[row].remat or "none")


def test_what_a_row_keeps_is_one_of_three():
    fields = default()
    for remat in ("none", "dots", "full", None):
        fields.meshes["v5e:2x4"] = dict(fsdp=8, remat=remat)
        assert from_dict(fields).meshes["v5e:2x4"].remat == remat
    fields.meshes["v5e:2x4"] = dict(fsdp=8, remat="all")
    with refuses("meshes.v5e:2x4.remat"):
        from_dict(fields)


def test_without_rows_or_with_a_mesh_the_configuration_stays(found):
    found("cpu", 8)
    for cfg in (Config(), Config(meshes=ROWS, mesh=MeshConfig(fsdp=8))):
        assert devices.on_devices(cfg) == cfg


@pytest.mark.parametrize(
    "cfg, field",
    [
        (Config(meshes=ROWS), "meshes"),
        (Config(meshes=ROWS, topology="cpu:8"), "topology"),
        (Config(topology="cpu:3"), "topology"),
        (Config(meshes=ROWS, topology="cpu:3"), "topology"),
        (Config(meshes=ROWS, topology="v9:3"), "topology"),
    ],
)
def test_what_does_not_fit_is_one_line(found, cfg, field):
    found("cpu", 3)
    with refuses(field):
        devices.on_devices(cfg)


def test_a_named_topology_may_come_with_a_mesh_of_its_own(found):
    found("cpu", 4)
    cfg = Config(meshes=ROWS, topology="cpu:4", mesh=MeshConfig(fsdp=4))
    assert devices.on_devices(cfg) == cfg


def test_virtual_devices_share_the_memory_of_their_host():
    """A CPU device reports no memory of its own."""
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for count in (1, 8):
        mesh = Mock(spec=Mesh, local_devices=jax.devices("cpu")[:1] * count)
        assert count * memory_to_use(mesh) == pytest.approx(host / 4, rel=1e-6)


def test_a_device_that_reports_its_memory_gives_a_share_of_what_is_free():
    device = Mock(memory_stats=lambda: {"bytes_limit": 1000, "bytes_in_use": 300})
    mesh = Mock(spec=Mesh, local_devices=[device])
    assert [memory_to_use(mesh, reserved=n) for n in (0, 200, 800)] == [560, 400, 0]


def test_all_hosts_use_the_memory_of_the_one_that_has_least(monkeypatch: pytest.MonkeyPatch):
    device = Mock(memory_stats=lambda: {"bytes_limit": 1000})
    mesh = Mock(spec=Mesh, local_devices=[device])
    monkeypatch.setattr(distributed, "exchange", lambda own: [own, own // 2, 2 * own])
    assert memory_to_use(mesh) == 400


def test_no_devices_are_one_line(monkeypatch: pytest.MonkeyPatch):
    def none() -> None:
        raise RuntimeError("Unknown backend:\n cuda")

    monkeypatch.setattr(devices.jax, "devices", none)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with pytest.raises(UserError, match="^JAX_PLATFORMS=cuda: .*: Unknown backend: cuda; unset it"):
        devices.on_devices(Config())
