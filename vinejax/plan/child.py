"""Compiles one program of a case, in a process of its own, and says what the compiler made of it.

    python -m vinejax.plan.child REQUEST.json ANSWER.json

A compile can run for minutes, take gigabytes or crash, and it fixes the number of devices of the
process that it runs in: `compiler.py` starts it, with the environment that it needs.
"""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import jax

from vinejax.config import from_dict
from vinejax.model.sharding import AXES, mesh_over
from vinejax.plan import hlo
from vinejax.plan.case import Case, open_case
from vinejax.plan.memory import main_phase, parts
from vinejax.plan.programs import Programs

# 'Ran out of memory on HBM, the total memory required for HLO temporaries (24.16G) exceeds
# available HBM (15.75G).' and, of arguments, 'Used 20.1G of 15.75G hbm.'
NEEDS = (
    re.compile(r"\(([\d.]+)([KMG])\) exceeds available \w+ \(([\d.]+)([KMG])\)"),
    re.compile(r"Used ([\d.]+)([KMG]) of ([\d.]+)([KMG]) hbm"),
)
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
LARGE = 2**20  # bytes of a copy that is told of


def devices_of(case: Case) -> list[Any]:
    """As many as the topology has, of a compiler's making for a TPU."""
    if case.topology.is_tpu:
        from jax.experimental import topologies

        described = topologies.get_topology_desc(
            case.topology.name, platform="tpu", **case.topology.compiler_options
        )
        return list(described.devices)
    jax.config.update("jax_num_cpu_devices", case.topology.devices)
    return jax.devices("cpu")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What compiling `request['program']` found; 'error' alone where it did not compile."""
    case = open_case(from_dict(request["config"]))
    devices = devices_of(case)
    mesh = mesh_over(tuple(case.mesh.shape[name] for name in AXES), devices)
    programs = Programs(case, main_phase(parts(case)[1]), mesh)
    start = time.perf_counter()
    lowered = programs.lower(request["program"])
    traced = time.perf_counter()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        return too_large(str(error))
    return {
        "trace_s": traced - start,
        "compile_s": time.perf_counter() - traced,
        "memory": memory_of(compiled),
        **read(compiled.as_text()),
    }


def too_large(message: str) -> dict[str, Any]:
    """What the compiler says of a program that has no room; any other message as it is."""
    for pattern in NEEDS:
        if found := pattern.search(message):
            needs, limit = (float(found[i]) * UNITS[found[i + 1]] for i in (1, 3))
            return {"error": "memory", "needs": needs, "limit": limit}
    return {"error": " ".join(message.split())[:500]}


def memory_of(compiled: Any) -> dict[str, int]:
    """Bytes of a device: 'peak' includes the arguments."""
    stats = compiled.memory_analysis()
    kinds = ("argument", "output", "temp", "alias")
    memory = {kind: getattr(stats, f"{kind}_size_in_bytes") for kind in kinds}
    whole = memory["argument"] + memory["output"] + memory["temp"] - memory["alias"]
    # The CPU's compiler does not tell a peak that includes the arguments.
    peak = stats.peak_memory_in_bytes
    return memory | {"peak": peak if peak >= memory["argument"] else whole}


def read(text: str) -> dict[str, Any]:
    program = hlo.parse(text)
    found = hlo.collectives(program)
    return {
        "collectives": [x._asdict() for x in found],
        "copies": hlo.copies(program, LARGE),
        "kernels": hlo.kernels(program),
    }


def main(argv: list[str]) -> None:
    request = json.loads(Path(argv[0]).read_text())
    Path(argv[1]).write_text(json.dumps(answer(request)))


if __name__ == "__main__":
    main(sys.argv[1:])
