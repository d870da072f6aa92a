"""Compiles decoding and an update of the tiny model for a number of virtual devices, and counts.

    python weak_scaling_child.py DEVICES

Problems, slots and the minibatch grow with the devices. Writes JSON: for each program the FLOPs
of its matrix products and its collectives, on one device. system/test_weak_scaling.py runs it.
"""

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from vinejax.config.load import from_dict, from_file
from vinejax.model.sharding import mesh_over
from vinejax.tools.plan.aot import hlo
from vinejax.tools.plan.aot.compile_child import devices_of
from vinejax.tools.plan.aot.planned_programs import Lowering
from vinejax.tools.plan.case import open_case
from vinejax.tools.plan.planned_memory import main_phase, memory_and_phases

CONFIGS = Path(__file__).parents[3] / "configs"
FSDP, TENSOR = 2, 2


def product_flops(program: hlo.HloProgram) -> float:
    """FLOPs of every `dot`, 2 x outputs x contracted numbers, times its trip count."""
    total = 0.0
    for name, x, count, *_ in hlo.walk_instructions(program):
        if x.op != "dot":
            continue
        shapes = {other.name: other.shape for other in program.computations[name]}
        operand = x.arguments.split(",")[0].split()[-1].lstrip("%").rstrip(")")
        dims = [int(n) for n in re.findall(r"\[([\d,]*)\]", shapes[operand])[0].split(",") if n]
        axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", x.arguments)
        assert axes is not None, x
        contracted = math.prod(dims[int(axis)] for axis in axes[1].split(",") if axis)
        outputs = re.findall(r"\[([\d,]*)\]", x.shape)[0]
        total += 2 * count * contracted * math.prod(int(n) for n in outputs.split(",") if n)
    return total


def counts(devices: int) -> dict[str, Any]:
    fields = from_file(str(CONFIGS), "configs/tiny.py")
    shards = devices // TENSOR
    fields.topology = f"cpu:{devices}"
    fields.meshes[fields.topology] = dict(data=shards // FSDP, fsdp=FSDP, tensor=TENSOR)
    fields.rollout.prompts, fields.rollout.per_prompt = 2 * shards, 4
    fields.rollout.slots = 8 * shards
    fields.ppo.minibatch, fields.ppo.microbatch = 4 * shards, 2 * shards
    fields.rollout.memory_gib = 1.0
    case = open_case(from_dict(fields))
    mesh = mesh_over((shards // FSDP, FSDP, TENSOR), devices_of(case))
    programs = Lowering(case, main_phase(memory_and_phases(case)[1]), mesh)
    found = {}
    for name in ("decode", "train_step"):
        program = hlo.parse_hlo(programs.lower(name).compile().as_text())
        collectives = hlo.collectives(program)
        found[name] = {
            "flops": product_flops(program),
            "times": hlo.totals_by_kind(collectives),
            "shapes": sorted((x.kind, x.shape, x.count) for x in collectives if not x.in_loop),
            "looped": sorted((x.kind, x.shape, x.count, x.group) for x in collectives if x.in_loop),
        }
    return found


if __name__ == "__main__":
    print(json.dumps(counts(int(sys.argv[1]))))
