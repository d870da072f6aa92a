"""Compiles one program of a plan in a separate process, and reports facts about the result.

    python -m vinejax.tools.plan.aot.compile_child REQUEST.json ANSWER.json

Compiling can run for minutes, take gigabytes or crash, and it fixes the number of devices of its
process. So `compiler.py` runs this module in a new process with its own environment variables.
"""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import jax

from vinejax.config.load import from_dict
from vinejax.model.sharding import AXES, mesh_over
from vinejax.tools.plan.aot import gpu_program, gpu_target, hlo
from vinejax.tools.plan.aot.planned_programs import Lowering
from vinejax.tools.plan.case import Case, open_case
from vinejax.tools.plan.planned_memory import is_decode, memory_and_phases, program_phase

# The compiler's messages: 'Ran out of memory on HBM, the total memory required for HLO temporaries
# (24.16G) exceeds available HBM (15.75G).' if temporaries do not fit, and 'Used 20.1G of 15.75G
# hbm.' if arguments do not fit.
NEEDS = (
    re.compile(r"\(([\d.]+)([KMG])\) exceeds available \w+ \(([\d.]+)([KMG])\)"),
    re.compile(r"Used ([\d.]+)([KMG]) of ([\d.]+)([KMG]) hbm"),
)
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
LARGE = 2**20  # smallest copy worth reporting, in bytes


def devices_of(case: Case) -> list[Any]:
    """Devices to compile for: absent TPUs or GPUs, or virtual CPU devices."""
    topology = case.topology
    if topology.is_tpu:
        from jax.experimental.topologies import get_topology_desc

        return list(get_topology_desc(topology.name, "tpu", **topology.compiler_options).devices)
    if case.platform == "gpu":
        gpu_target.assume_cudnn(topology.kind)
        return gpu_target.gpu_devices(topology)
    jax.config.update("jax_num_cpu_devices", topology.chips)
    return jax.devices("cpu")


def compile_request(request: dict[str, Any]) -> dict[str, Any]:
    """Compiles `request['program']`; returns facts about the result, or `compile_error`'s dict."""
    case = open_case(from_dict(request["config"]))
    devices = devices_of(case)
    mesh = mesh_over(tuple(case.mesh.shape[name] for name in AXES), devices)
    name = request["program"]
    lowering = Lowering(case, program_phase(name, memory_and_phases(case)[1]), mesh)
    start = time.perf_counter()
    lowered = lowering.lower(name)
    traced = time.perf_counter()
    try:
        # Only decoding has kernels of ours. A program that spills is compiled twice.
        if (dump := request.get("dump")) and is_decode(name):
            compiled, spills = gpu_target.compile_and_look_for_spills(lowered)
        else:
            compiled, spills = lowered.compile(), None
    except jax.errors.JaxRuntimeError as error:
        return compile_error(str(error))
    compile_s = time.perf_counter() - traced
    program = hlo.parse_hlo(compiled.as_text())
    of_gpu = gpu_program.facts(program, Path(dump)) | {"spills": spills} if dump else {}
    return of_gpu | {
        "trace_s": traced - start,
        "compile_s": compile_s,
        "memory": memory_stats(compiled),
        "collectives": [x._asdict() for x in hlo.collectives(program)],
        "copies": hlo.large_copies(program, LARGE),
        "cycles": hlo.cycles(program)._asdict(),
        "kernels": hlo.count_kernels(program),
    }


def compile_error(message: str) -> dict[str, Any]:
    """The answer for a program that the compiler rejected with this message.

    If memory was too small, 'error' is 'memory', and 'needs' and 'limit' are numbers of bytes.
    Otherwise 'error' is the beginning of the message.
    """
    for pattern in NEEDS:
        if sizes := pattern.search(message):
            needs, limit = (float(sizes[i]) * UNITS[sizes[i + 1]] for i in (1, 3))
            return {"error": "memory", "needs": needs, "limit": limit}
    return {"error": " ".join(message.split())[:500]}


def memory_stats(compiled: Any) -> dict[str, int]:
    """Maps kinds of memory, such as 'temp', to bytes per device.

    The entry 'peak' is the peak of the program's memory, including its arguments.
    """
    stats = compiled.memory_analysis()
    kinds = ("argument", "output", "temp", "alias")
    memory = {kind: getattr(stats, f"{kind}_size_in_bytes") for kind in kinds}
    total = memory["argument"] + memory["output"] + memory["temp"] - memory["alias"]
    # The peak that the CPU's compiler reports excludes the arguments.
    peak = stats.peak_memory_in_bytes
    return memory | {"peak": peak if peak >= memory["argument"] else total}


def main(argv: list[str]) -> None:
    request = json.loads(Path(argv[0]).read_text())
    Path(argv[1]).write_text(json.dumps(compile_request(request)))


if __name__ == "__main__":
    main(sys.argv[1:])
