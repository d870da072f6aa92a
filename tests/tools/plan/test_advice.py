"""The advice of a plan whose decoding programs do not fit."""

import dataclasses
from typing import Any

import pytest
from helpers.paths import CONFIGS

from vinejax.config.load import from_dict, from_file
from vinejax.engine.tpu.paged import PagedStorage
from vinejax.model.decoder import Decoder
from vinejax.tools.plan.aot.advice import advise
from vinejax.tools.plan.case import Case, open_case
from vinejax.tools.plan.cost import program_costs, usable_slots
from vinejax.tools.plan.planned_memory import PlannedPhase, main_phase, memory_and_phases
from vinejax.tools.plan.roofline import PlannedProgram, plan_program


def planned(name: str, **fields: Any) -> tuple[Case, PlannedPhase, PlannedProgram]:
    """math7b on v5e:16x16, with a program of that name that takes over 1 GiB more than there is."""
    loaded = from_file(str(CONFIGS), "configs/math7b.py")
    loaded.topology = "v5e:16x16"
    for field, value in fields.items():
        loaded.meshes["v5e:16x16"][field] = value
    case = open_case(from_dict(loaded))
    memory, phases = memory_and_phases(case)
    phase = main_phase(phases)
    compiled = {"memory": {"peak": case.limit + 2**30}}
    cost = program_costs(case, phases)[name]
    return case, phase, plan_program(case, memory, phase, name, cost, compiled)


def pages_of(phase: PlannedPhase) -> int:
    assert isinstance(phase.sizes.storage, PagedStorage)
    return phase.sizes.storage.pages


def test_a_pool_that_takes_what_there_is_gets_a_limit():
    """With fewer slots the pool would be as large."""
    case, phase, program = planned("decode")
    assert pages_of(phase) < phase.sizes.slots * 4
    lines = advise(case, phase, program)
    held = (program.parts["trunk KV"] + program.parts["suffix KV"]) / 2**30
    (line,) = [line for line in lines if "memory_gib" in line]
    assert line.startswith("rollout.memory_gib = ")
    limit = float(line.split()[2])
    assert limit == pytest.approx(held - (program.total - case.limit) / 2**30, abs=0.02)
    rollout = dataclasses.replace(case.cfg.rollout, memory_gib=limit)
    smaller = dataclasses.replace(case, cfg=dataclasses.replace(case.cfg, rollout=rollout))
    parts, _ = memory_and_phases(smaller)
    assert parts.trunk_kv + parts.suffix_kv <= limit * 2**30
    assert not any("slots" in line for line in lines)


def test_a_pool_with_all_columns_gets_fewer_slots():
    case, phase, program = planned("decode", slots=3072)
    assert pages_of(phase) == phase.sizes.slots * 4
    lines = advise(case, phase, program)
    assert any(line.startswith("meshes['v5e:16x16'].slots = 2") for line in lines)


def test_a_program_without_caches_gets_none():
    case, phase, program = planned("decode copy")
    lines = advise(case, phase, program)
    assert lines and not any("slots" in line or "memory_gib" in line for line in lines)


@pytest.mark.parametrize("rank", [0, 8])
def test_a_teacher_beside_adapters_is_not_offloaded(rank: int):
    """In a run with adapters `offload.reference` has no effect."""
    case, phase, program = planned("decode copy")
    model = dataclasses.replace(case.cfg.model, lora_rank=rank)
    case = dataclasses.replace(case, cfg=dataclasses.replace(case.cfg, model=model))
    program = program._replace(parts=program.parts | {"reference": 2**33})
    lines = advise(case, phase, program)
    assert any("offload.reference" in line for line in lines) == (rank == 0)


@pytest.mark.parametrize(("ffn", "is_proposed"), [(11008, True), (11000, False)])
def test_a_larger_tensor_is_one_that_the_run_takes(ffn: int, is_proposed: bool):
    """The row of `meshes` has the mesh, and `tensor` divides what it splits."""
    case, phase, program = planned("decode")
    model = Decoder(dataclasses.replace(case.model.cfg, ffn=ffn), compute=case.model.compute)
    lines = advise(dataclasses.replace(case, model=model), phase, program)
    text = "meshes['v5e:16x16'].tensor = 16, with half the shards, frees "
    assert [line.startswith(text) for line in lines if "tensor =" in line] == [True] * is_proposed


def test_slots_with_all_columns_can_all_be_busy():
    _, phase, _ = planned("decode", slots=3072)
    for tokens in (10.0, 1000.0, 1e6):
        assert usable_slots(phase._replace(tokens=tokens)) == phase.sizes.slots
    _, phase, _ = planned("decode", slots=8192)
    assert usable_slots(phase._replace(tokens=10.0)) == phase.sizes.slots
    assert usable_slots(phase._replace(tokens=1e6)) == pages_of(phase) // 4
