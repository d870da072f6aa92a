"""How often an iteration calls each program, and how long that takes."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.tools.plan_cases import small, small_fields

from vinejax.config.load import from_dict
from vinejax.engine.cache import Sizes
from vinejax.engine.drain import SHARE
from vinejax.engine.tpu.paged import PagedStorage
from vinejax.tools.plan.aot.iteration_time import (
    KERNEL_SPEED,
    LATENCY_S,
    PlannedStage,
    iteration_stages,
)
from vinejax.tools.plan.aot.plan_table import Plan, as_json, price_lines, utilisation_lines
from vinejax.tools.plan.case import Case, open_case
from vinejax.tools.plan.cost import (
    busy_slots,
    calls_per_phase,
    columns_bytes,
    columns_read,
    decode_cost,
    program_costs,
)
from vinejax.tools.plan.planned_memory import (
    PlannedPhase,
    is_decode,
    memory_and_phases,
    program_phase,
    train_length,
    usual_length,
)
from vinejax.tools.plan.roofline import PlannedProgram, least_seconds, plan_program

TPU = "v5e:2x4"
SHARDS = 4  # of `small`
# A phase whose drain has a drain.
MANY_SLOTS = {"rollout.slots": 4 * 128, "rollout.prompts": 400, "sample.max_tokens": 256}
DECODING = ("decode", "drain", "drain 2")  # calls of a phase whose drain has a drain


def cycles(trip: float) -> dict[str, Any]:
    """The compiler's answer about a program whose step takes so many cycles."""
    return {"cycles": {"always": 0.0, "branches": 0.0, "trip": trip}}


def planned(case: Case, compiled: dict[str, Any]) -> dict[str, PlannedProgram]:
    """The programs of a case, of which those that decode were compiled with this answer."""
    held, phases = memory_and_phases(case)
    return {
        name: plan_program(
            case, held, program_phase(name, phases), name, cost, compiled if is_decode(name) else {}
        )
        for name, cost in program_costs(case, phases).items()
    }


def in_shapes(phase: PlannedPhase, *shapes: Sizes) -> PlannedPhase:
    """The phase with these sizes, then those of its drains."""
    return phase._replace(sizes=shapes[0], shapes=shapes)


@pytest.mark.parametrize(("branches", "slots"), [(40, 128), (300, 128), (2000, 96)])
def test_decode_steps_are_those_of_a_simulation(tmp_path: Path, branches: int, slots: int):
    """Branches of exponential lengths, each taken by the first slot that is free; and the slots
    that are busy meanwhile."""
    case = small(tmp_path, fields={"sample.max_tokens": 10**6})
    rollout = memory_and_phases(case)[1][0]
    shapes = [dataclasses.replace(rollout.sizes, slots=slots // SHARE**n) for n in range(3)]
    phase = in_shapes(rollout, *shapes)._replace(branches=4 * branches, tokens=50.0)
    rng, steps, worked = np.random.default_rng(0), [], []
    for _ in range(100):
        ends = np.zeros((SHARDS, slots))
        for of_shard in ends:
            for length in rng.exponential(50.0, branches):
                of_shard[of_shard.argmin()] += length
        # As many are left as a drain has slots, in the shard that has the most.
        begins = [np.sort(ends)[:, slots - drain.slots - 1].max() for drain in shapes[1:]]
        bounds = [0.0, *begins, ends.max()]
        steps.append(np.diff(bounds))
        worked.append(np.diff([np.minimum(ends, x).sum() / SHARDS for x in bounds]))
    calls, means = calls_per_phase(case, phase), np.mean(steps, axis=0)
    for name, mean, near in zip(DECODING, means, (0.03, 0.08, 0.08), strict=True):
        assert calls[name] == pytest.approx(mean, rel=near), name
    drained = calls["drain"] + calls["drain 2"]
    assert drained == pytest.approx(means[1] + means[2], rel=0.05)
    of_all = [busy_slots(case, phase.in_shape(n)) for n in range(3)]
    for n, near in enumerate((0.03, 0.5, 0.5)):
        assert of_all[n] == pytest.approx(
            np.sum(worked, axis=0)[n] / np.sum(steps, axis=0)[n], rel=near
        )
    without = calls_per_phase(case, in_shapes(phase, shapes[0]))
    assert without.keys() == {"prefill", "decode"}
    assert without["decode"] == pytest.approx(sum(calls[name] for name in DECODING))


def test_the_last_branches_take_no_longer_than_the_longest_may(tmp_path: Path):
    case = small(tmp_path)
    phase = memory_and_phases(case)[1][0]._replace(branches=4 * 128, tokens=16.0)
    shapes = [dataclasses.replace(phase.sizes, slots=slots) for slots in (128, 32, 8)]
    for count in (1, 2, 3):
        calls = calls_per_phase(case, in_shapes(phase, *shapes[:count]))
        steps = sum(calls[name] for name in DECODING[:count])
        assert steps == case.cfg.sample.max_tokens == 32


def test_a_phase_of_many_slots_has_drains_whose_steps_cost_less(tmp_path: Path):
    case = small(tmp_path, TPU, MANY_SLOTS)
    _, phases = memory_and_phases(case)
    rollout = phases[0]
    assert [sizes.slots for sizes in rollout.shapes] == [128, 32, 8]
    plan = Plan(case, phases, [], iteration_stages(case, phases, planned(case, {})), {}, [])
    written = json.loads(json.dumps(as_json(plan)))
    assert [sizes["slots"] for sizes in written["phases"][0]["shapes"]] == [128, 32, 8]
    calls = written["iteration"][0]["calls"]
    assert {name: calls[name] for name in DECODING}.items() <= calls_per_phase(
        case, rollout
    ).items()
    costs = [decode_cost(case, rollout.in_shape(n)) for n in range(3)]
    assert costs[2].bytes < costs[1].bytes < costs[0].bytes
    programs = planned(case, {})
    whole, plain = (
        iteration_stages(case, [one, phases[1]], programs)[0]
        for one in (rollout, in_shapes(rollout, rollout.sizes))
    )
    seconds = [max(least_seconds(case, cost, 0).values()) for cost in costs]
    in_all = max(
        least_seconds(case, decode_cost(case, in_shapes(rollout, rollout.sizes)), 0).values()
    )
    decoding = sum(calls[name] * x for name, x in zip(DECODING, seconds, strict=True))
    assert plain.seconds - whole.seconds == pytest.approx(plain.calls["decode"] * in_all - decoding)
    assert plain.seconds > whole.seconds


def test_an_estimate_takes_the_cycles_and_what_kernels_read(tmp_path: Path):
    case = small(tmp_path, TPU, {"rollout.attention": "xla"})
    phases = memory_and_phases(case)[1]
    chip = case.topology.chip
    known, unknown = (
        iteration_stages(case, phases, planned(case, compiled))[1] for compiled in (cycles(3e9), {})
    )
    assert unknown.estimate == unknown.seconds == known.seconds
    steps, least = known.calls["decode"], least_seconds(case, decode_cost(case, phases[1]), 0)
    others = known.seconds - steps * max(least.values())
    assert known.estimate == pytest.approx(others + steps * 3e9 / (chip.clock_ghz * 1e9))

    with_kernel = []
    for phase in phases:
        storage = PagedStorage(pages=phase.sizes.slots)
        sizes = dataclasses.replace(phase.sizes, storage=storage, columns=256, width=256)
        with_kernel.append(in_shapes(phase, sizes))
    found = iteration_stages(case, with_kernel, planned(case, cycles(3e9)))[1]
    reading = columns_bytes(case, with_kernel[1]) / (KERNEL_SPEED * chip.hbm_gb_s * 1e9)
    least = least_seconds(case, decode_cost(case, with_kernel[1]), 0)
    others = found.seconds - found.calls["decode"] * max(least.values())
    wanted = others + found.calls["decode"] * (3e9 / (chip.clock_ghz * 1e9) + reading)
    assert found.estimate == pytest.approx(wanted, rel=1e-12)
    assert reading > 0


def test_each_phase_and_drain_is_estimated_by_its_own_program(tmp_path: Path):
    """Programs with cycles of their own, and with the bytes that they send."""
    case = small(tmp_path, TPU, MANY_SLOTS)
    held, phases = memory_and_phases(case)
    names = [name + suffix for suffix in ("", ", rollout") for name in DECODING]
    costs = program_costs(case, phases)
    assert [name for name in costs if is_decode(name)] == names
    by_name = dict(zip(names, (6e9, 5e9, 4e9, 3e9, 2e9, 1e9), strict=True))
    sums = {"kind": "all-reduce", "shape": "f32[8]", "group": 2, "count": 1.0, "sent": 1e12,
            "in_loop": True, "source": "x", "rings": 1}  # fmt: skip
    programs = {}
    for name, cost in costs.items():
        compiled: dict[str, Any] = cycles(by_name.get(name, 0.0))
        if name == "drain, rollout":
            compiled["collectives"] = [sums]
        phase = program_phase(name, phases)
        programs[name] = plan_program(case, held, phase, name, cost, compiled)
    shares = [programs[name].parts["suffix KV"] for name in names]
    assert shares[1] == shares[0] / SHARE and shares[4] == shares[3] / SHARE
    chip = case.topology.chip
    stages = iteration_stages(case, phases, programs)
    for stage, suffix in zip(stages[:2], (", rollout", ""), strict=True):
        seconds = sum(
            stage.calls[name] * by_name[name + suffix] / (chip.clock_ghz * 1e9) for name in DECODING
        )
        if suffix:  # the sums come after what they add up
            seconds += stage.calls["drain"] * 1e12 / (chip.link_gb_s * 1e9 * 1 / chip.links)
        rest = stage.calls["prefill"] * programs["prefill"].cost.bytes / (chip.hbm_gb_s * 1e9)
        assert seconds < stage.estimate < seconds + 2 * rest + 1


def test_a_trunk_of_expected_length_is_read(tmp_path: Path):
    """Rows follow `plan.prompt_tokens` and `plan.tokens`, not the longest prompt allowed."""
    fields = {"data.max_prompt_tokens": 1024, "rollout.attention": "kernel"}
    lengths = {"plan.prompt_tokens": 40, "plan.tokens": 20}
    default, short = (
        memory_and_phases(small(tmp_path, "cpu:8", fields | more))[1] for more in ({}, lengths)
    )
    assert [phase.mean_trunk for phase in default] == [512, 520]
    assert [phase.mean_trunk for phase in short] == [40, 60]
    assert [columns_read(phase)[0] for phase in short] == [56, 76]
    assert [columns_read(phase)[0] for phase in default] == [256, 256], "the whole row"
    assert [phase.trunk_tokens for phase in short] == [phase.trunk_tokens for phase in default]


def test_passes_take_their_cycles_beside_or_after_what_is_sent(tmp_path: Path):
    """Times are scaled to rows of the usual length; each collective has its latency."""
    case = small(tmp_path, TPU, {"plan.prompt_tokens": 4, "sample.max_tokens": 20})
    held, phases = memory_and_phases(case)
    assert usual_length(case) / train_length(case) == 0.5
    gather = {"kind": "all-gather", "shape": "f32[8]", "group": 2, "count": 3.0, "sent": 0.0,
              "in_loop": False, "source": "x"}  # fmt: skip
    compiled = {"cycles": {"always": 4e9, "branches": 0.0, "trip": 0.0}, "collectives": [gather]}
    costs = program_costs(case, phases)
    programs = planned(case, {})
    programs["score"] = plan_program(case, held, phases[1], "score", costs["score"], compiled)
    score = iteration_stages(case, phases, programs)[2]
    seconds = 4e9 / (case.topology.chip.clock_ghz * 1e9) / 2
    assert score.estimate == pytest.approx(score.calls["score"] * seconds)
    latency = score.calls["score"] * 3 * LATENCY_S
    assert score.one_by_one == pytest.approx(score.estimate + latency)


def test_activations_are_sent_for_the_usual_length_and_weights_whole(tmp_path: Path):
    """Groups of the size of `tensor` send activations, unless another axis has the same size."""
    sent = {"kind": "all-gather", "shape": "f32[8]", "count": 0.0, "sent": 1e12, "in_loop": False,
            "source": "x"}  # fmt: skip
    compiled = {"collectives": [{**sent, "group": 2}, {**sent, "group": 4}]}

    def seconds(**mesh: int) -> float:
        fields = small_fields(tmp_path, TPU, {"plan.prompt_tokens": 4, "sample.max_tokens": 20})
        fields.meshes[TPU] = mesh
        case = open_case(from_dict(fields))
        assert usual_length(case) / train_length(case) == 0.5
        held, phases = memory_and_phases(case)
        programs, costs = planned(case, {}), program_costs(case, phases)
        programs["score"] = plan_program(case, held, phases[1], "score", costs["score"], compiled)
        score = iteration_stages(case, phases, programs)[2]
        return score.seconds / score.calls["score"] * case.topology.chip.link_gb_s * 1e9

    assert seconds(fsdp=4, tensor=2) == pytest.approx(1.5e12)
    assert seconds(data=2, fsdp=2, tensor=2) == pytest.approx(2e12)


def test_a_plan_says_what_values_cost(tmp_path: Path):
    case = small(tmp_path, TPU)
    phases = memory_and_phases(case)[1]
    stages = [
        PlannedStage("rollout", {}, 1.0, "memory", 1.0, 1.0),
        PlannedStage("values", {}, 3.0, "memory", 3.0, 3.0),
        PlannedStage("score", {}, 0.5, "compute", 0.5, 0.5),
        PlannedStage("train", {}, 0.5, "compute", 0.5, 1.5),
    ]
    assert (phases[1].branches, phases[1].tokens) == ((32 * 4 - 24) * 9, 5.0)
    ratio, price = price_lines(Plan(case, phases, [], stages, {}, []))
    assert "2.00 to 2.50 times what it would take without values" in ratio
    assert f"{3.0 / (104 * 9 * 5) / (1.0 / (32 * 8)):.2g} of the time of a trained one" in price
    stages[1] = PlannedStage("values", {}, 18.0, "memory", 18.0, 18.0)
    ratio, _ = price_lines(Plan(case, phases, [], stages, {}, []))
    assert "takes 7.00 to 10.00 times" in ratio
    assert price_lines(Plan(case, phases, [], stages[:1], {}, [])) == []


def test_a_plan_says_how_well_updates_use_the_chips(tmp_path: Path):
    case = small(tmp_path, TPU, {"ppo.epochs": 2})
    phases = memory_and_phases(case)[1]
    cfg = case.model.cfg
    length = 16 + 8  # of a mean prompt and a mean response
    layer = cfg.width * cfg.head_dim * (2 * cfg.num_heads + 2 * cfg.num_kv_heads)
    layer += 3 * cfg.width * cfg.ffn
    weights = cfg.num_layers * layer + cfg.vocab_size * cfg.width
    attention = 4 * cfg.num_layers * cfg.num_heads * cfg.head_dim * length / 2
    flops = 2 * 32 * length * 3 * (2 * weights + attention)
    peak = 8 * case.topology.chip.bf16_tflops * 1e12  # of all chips
    stages = [PlannedStage("train", {}, 0.0, "compute", flops / peak / 0.5, flops / peak / 0.25)]
    (line,) = utilisation_lines(Plan(case, phases, [], stages, {}, []))
    assert "25.0% to 50.0% of the chips' peak" in line
    assert utilisation_lines(Plan(case, phases, [], [], {}, [])) == []


def test_few_cycles_do_not_make_an_estimate_smaller_than_the_least(tmp_path: Path):
    case = small(tmp_path, TPU)
    phases = memory_and_phases(case)[1]
    for stage in iteration_stages(case, phases, planned(case, cycles(1.0))):
        assert stage.estimate == stage.seconds
