"""Rows proposed for slices without one: the rule, its errors, and its uses."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.paths import CONFIGS
from helpers.refusals import refuses
from helpers.tools.plan_cases import SMALL, small_fields

from vinejax import library
from vinejax.config.checks import check_config
from vinejax.config.load import from_dict, from_file
from vinejax.core.settings import Config, MeshConfig, TopologyConfig
from vinejax.runtime import devices
from vinejax.runtime.devices import on_devices
from vinejax.runtime.topology import parse_topology
from vinejax.tools.plan import propose
from vinejax.tools.plan.aot import plan_mode
from vinejax.tools.plan.case import open_case
from vinejax.tools.plan.cost import program_costs
from vinejax.tools.plan.planned_memory import (
    decode_copy_bytes,
    main_phase,
    memory_and_phases,
    program_phase,
)
from vinejax.tools.plan.propose import (
    propose_row,
    row_text,
    with_proposed_row,
    with_row_for_devices,
)
from vinejax.tools.plan.roofline import plan_program
from vinejax.training import loop as train

SLICES = [
    *(("math7b", name) for name in ("v5e:16x16", "v5e:4x4", "v5p:2x2x2", "v4:4x4x4", "h100:8")),
    *(("rho1b_math", name) for name in ("v5e:16x16", "v5e:2x4", "v6e:1x1", "v4:2x2x1", "a100:1")),
]


def config(name: str, **fields: Any) -> Config:
    found = from_file(str(CONFIGS), f"configs/{name}.py")
    found.update_from_flattened_dict(fields)
    return dataclasses.replace(from_dict(found), meshes={})


@pytest.mark.parametrize(("name", "slice_name"), SLICES)
def test_what_is_proposed_can_be_and_has_room(name: str, slice_name: str):
    cfg = with_proposed_row(config(name), parse_topology(slice_name))
    check_config(cfg)
    case = open_case(dataclasses.replace(cfg, topology=slice_name))
    assert case.mesh.size == case.topology.chips
    assert case.model.cfg.width // case.cfg.mesh.fsdp >= 128
    memory, phases = memory_and_phases(case)
    phase, row = main_phase(phases), cfg.meshes[slice_name]
    assert row.slots == phase.sizes.slots * case.shards, "memory cut them"
    for program, cost in program_costs(case, phases).items():
        of_program = program_phase(program, phases)
        total = plan_program(case, memory, of_program, program, cost, {}).total
        assert total <= 0.85 * case.limit, program


@pytest.mark.parametrize(
    ("name", "slice_name", "mesh"),
    [
        # The copy takes 12.9 GiB over `tensor`: a fifth of 15.75, or a tenth.
        ("math7b", "v5e:4x4", MeshConfig(1, 2, 8)),
        ("math7b", "v6e:8x8", MeshConfig(1, 16, 4)),
        # 64 shards for a minibatch of 64, and no less than 128 of 2048 columns each.
        ("rho1b_math", "v5e:16x16", MeshConfig(4, 16, 4)),
        ("rho1b_math", "v6e:2x4", MeshConfig(1, 8, 1)),
    ],
)
def test_the_smallest_tensor_with_a_small_copy(name: str, slice_name: str, mesh: MeshConfig):
    topology = parse_topology(slice_name)
    row = propose_row(config(name), topology)
    assert MeshConfig(row.data, row.fsdp, row.tensor) == mesh
    shards = 2 * row.data * row.fsdp
    half = dataclasses.replace(
        row, fsdp=2 * row.fsdp, tensor=row.tensor // 2, microbatch=max(row.microbatch or 0, shards)
    )
    cfg = dataclasses.replace(config(name), topology=slice_name)
    if row.tensor > 1 and 64 % shards == 0:
        smaller = open_case(dataclasses.replace(cfg, meshes={slice_name: half}))
        assert decode_copy_bytes(smaller) > smaller.limit / 8
    chosen = open_case(dataclasses.replace(cfg, meshes={slice_name: row}))
    assert decode_copy_bytes(chosen) <= chosen.limit / 8


def test_a_small_chip_has_a_small_microbatch_and_pool(tmp_path: Path):
    """v6e:1x1 holds Rho-1B with little to spare; ten times the context only if nothing is kept."""
    row = propose_row(config("rho1b_math"), parse_topology("v6e:1x1"))
    large = propose_row(config("rho1b_math"), parse_topology("h200:1"))
    assert row.memory_gib and not large.memory_gib
    assert row.microbatch and large.microbatch and row.microbatch < large.microbatch
    in_bfloat16 = config("rho1b_math", **{"model.compute_dtype": "bfloat16"})
    plain = propose_row(in_bfloat16, parse_topology("cpu:8"))
    assert (row.remat, plain.remat) == ("dots", "full")


def test_a_plan_is_in_the_dtype_of_the_absent_devices():
    """The CPU's compute dtype is float32 by default, in which Rho-1B does not fit 4 GiB."""
    for name, dtype in (("cpu:8", "float32"), ("v6e:1x1", "bfloat16"), ("h200:1", "bfloat16")):
        rows = {name: TopologyConfig(data=parse_topology(name).chips)}
        cfg = dataclasses.replace(config("rho1b_math"), meshes=rows, topology=name)
        assert open_case(cfg).model.compute.dtype == dtype
    with refuses("topology"):
        propose_row(config("rho1b_math"), parse_topology("cpu:8"))


@pytest.mark.parametrize(
    ("fields", "slice_name"),
    [({}, "v5e:2x4"), ({}, "h200:1"), ({"ppo.minibatch": 3}, "v5e:16x16")],
)
def test_what_cannot_fit_is_one_line(fields: dict[str, Any], slice_name: str):
    with refuses("topology"):
        propose_row(config("math7b", **fields), parse_topology(slice_name))


def test_the_row_can_be_pasted_into_a_config_file():
    cfg = with_proposed_row(config("rho1b_math"), parse_topology("v5e:2x4"))
    fields = from_file(str(CONFIGS), "configs/rho1b_math.py")
    exec(row_text(cfg, "v5e:2x4"), {"cfg": fields})
    assert from_dict(fields).meshes["v5e:2x4"] == cfg.meshes["v5e:2x4"]
    assert "data" not in row_text(cfg, "v5e:2x4") and "memory_gib" not in row_text(cfg, "v5e:2x4")


# --- in a run


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch):
    def set_devices(kind: str, count: int) -> None:
        made = [SimpleNamespace(device_kind=kind)] * count
        for module in (devices, propose):
            monkeypatch.setattr(module, "found_devices", lambda: made)

    return set_devices


def test_a_run_takes_the_proposed_row_and_says_so(found, capsys):
    found("TPU v5 lite", 8)
    cfg = from_dict(from_file(str(CONFIGS), "configs/rho1b_gsm8k.py"))
    cfg.meshes.pop("v5e:2x4", None)
    placed = with_row_for_devices(cfg)
    line = capsys.readouterr().out
    row = placed.meshes["v5e:2x4"]
    assert line.count("\n") == 1 and row_text(placed, "v5e:2x4") in line
    assert "--config.topology=v5e:2x4" in line
    running = on_devices(placed)
    assert running.mesh == MeshConfig(row.data, row.fsdp, row.tensor)
    assert (running.rollout.slots, running.ppo.microbatch) == (row.slots, row.microbatch)
    assert running.model.remat == row.remat
    assert with_row_for_devices(placed) == placed and capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("kind", "count", "changes"),
    [
        ("TPU v5 lite", 4, {}),  # has a row
        ("TPU v5 lite", 16, {"meshes": {}}),
        ("TPU v5 lite", 16, {"mesh": MeshConfig(fsdp=16)}),
        ("TPU v5 lite", 16, {"topology": "v5e:2x2"}),
        ("TPU v5 lite", 12, {}),  # nobody offers so many
        ("NVIDIA X1", 8, {}),
        ("cpu", 8, {}),  # whose memory is the host's
    ],
)
def test_what_a_run_leaves_as_it_is(found, capsys, kind: str, count: int, changes: dict[str, Any]):
    found(kind, count)
    rows = {"v5e:2x2": TopologyConfig(fsdp=4)}
    cfg = dataclasses.replace(config("rho1b_math"), meshes=rows)
    cfg = dataclasses.replace(cfg, **changes)
    assert with_row_for_devices(cfg) == cfg and capsys.readouterr().out == ""


def test_a_run_for_which_nothing_can_be_chosen_ends(found):
    found("TPU v5 lite", 8)
    rows = {"v5e:2x2": TopologyConfig(fsdp=4)}
    for fields in ({}, {"model.architecture": "", "model.path": "no/folder"}):
        cfg = dataclasses.replace(config("math7b", **fields), meshes=rows)
        with refuses("meshes"):
            with_row_for_devices(cfg)


def test_from_python_too(found, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    found("TPU v6 lite", 4)
    taken = []

    def loop(cfg: Config, path: str) -> None:
        taken.append(cfg)
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "train", loop)
    with pytest.raises(KeyboardInterrupt):
        library.train(CONFIGS / "rho1b_math.py", workdir=tmp_path)
    assert taken[0].meshes["v6e:2x2"].fsdp == 4


# --- in a plan


def test_a_plan_without_a_row_shows_the_one_it_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setattr(plan_mode, "missing_gpu_compiler", lambda: "by arithmetic")
    fields = small_fields(tmp_path, "cpu:4")
    fields.topology = "h100:8"
    assert plan_mode.plan_run(from_dict(fields), tmp_path) is True
    out = capsys.readouterr().out
    # Two heads; a width of 8 is not split.
    assert SMALL["hidden_size"] == 8 and "data=8 fsdp=1 tensor=1" in out
    assert 'cfg.meshes["h100:8"] = dict(data=8, ' in out
    fields.mesh.fsdp = 8  # a mesh of one's own is planned as it is
    assert plan_mode.plan_run(from_dict(fields), tmp_path) is True
    assert "cfg.meshes" not in capsys.readouterr().out
