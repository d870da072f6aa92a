"""Computes the memory of each program, and a lower bound of its time.

The bound is the largest of the times that FLOPs, bytes and collectives take at the chip's peaks, as
if all three overlapped perfectly. It helps to compare settings of a run.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from vinejax.runtime.topology import Chip
from vinejax.tools.plan.aot.hlo import Collective, Totals
from vinejax.tools.plan.case import Case
from vinejax.tools.plan.cost import Cost, planned_passes
from vinejax.tools.plan.planned_memory import (
    MemoryParts,
    PlannedPhase,
    decode_copy_bytes,
    is_decode,
    kv_bytes,
    temporaries_guess,
)

BOUNDS = ("compute", "memory", "interconnect")
TEMPORARIES = "temporaries"
# Maps a program to its stage, and to the parts of memory that the compiler's peak includes.
STAGE = {
    "decode copy": ("rollout", ("weights", "decode copy")),
    "prefill": ("rollout", ("decode copy", "trunk KV")),
    "decode": ("rollout", ("decode copy", "trunk KV", "suffix KV")),
    "score": ("score", ("weights",)),
    "train_step": ("train", ("weights", "optimizer")),
    "critic_step": ("train", ("critic",)),
}
ABSENT = {"decode copy": ("trunk KV", "suffix KV")}  # program -> parts that do not exist yet


def stage_of(program: str) -> tuple[str, tuple[str, ...]]:
    """(stage of a program, parts of memory that the compiler's peak for this program includes)."""
    return STAGE["decode" if is_decode(program) else program]


class PlannedProgram(NamedTuple):
    """A program of an iteration with its cost and its memory, per chip."""

    name: str
    cost: Cost  # per call; for decoding, per step
    parts: dict[str, int]  # part of memory -> its bytes while the program runs
    compiled: dict[str, Any]  # the answer of `compiler.compile_program`; {} if not compiled
    passes_made: float = 1.0  # share of an update's passes that have tokens and are not skipped

    @property
    def total(self) -> int:
        """The bytes of all parts of the program's memory together."""
        return sum(self.parts.values())

    @property
    def error(self) -> str:
        """The reason why the program did not compile, or ''."""
        return self.compiled.get("error", "")

    @property
    def collectives(self) -> list[Collective]:
        """The collectives of a call or, for decoding, of a step.

        Counts and bytes of collectives inside conditionals are multiplied by `passes_made`, the
        share of an update's passes that are not skipped.
        """
        every = [Collective(**x) for x in self.compiled.get("collectives", [])]
        if is_decode(self.name):
            return [x for x in every if x.in_loop]
        share = self.passes_made
        return [
            x._replace(count=x.count * share, sent=x.sent * share) if x.in_branch else x
            for x in every
        ]

    @property
    def cycles(self) -> float:
        """The TPU compiler's cycles of a call or of a decode step; 0 if they are unknown."""
        return self._per_call("cycles")

    @property
    def kernels(self) -> float:
        """The kernels that a GPU runs in a call or in a decode step; 0 if they are unknown."""
        return self._per_call("gpu_kernels")

    @property
    def moved(self) -> float:
        """The bytes that a GPU's kernels move in a call or in a decode step; 0 if unknown."""
        return self._per_call("gpu_bytes")

    def _per_call(self, name: str) -> float:
        """An entry of `compiled` with a program's `hlo.Totals`, per call or per decode step.

        What is inside conditionals is multiplied by `passes_made`, the share of an update's passes
        that are not skipped.
        """
        totals = Totals(**self.compiled.get(name, {}))
        if is_decode(self.name):
            return totals.trip
        return totals.always + self.passes_made * totals.branches

    @property
    def sent(self) -> float:
        """The bytes that a device sends in collectives, per call or decode step."""
        return sum(x.sent for x in self.collectives)


def sending_seconds(chip: Chip, collectives: Iterable[Collective]) -> float:
    """A lower bound of the seconds that collectives take on a chip's links, one after another.

    A collective uses one link for each ring that the compiler reports, or all links if the compiler
    reports no rings. Chips in a line form one ring, which goes back along the same line.
    """
    speed = chip.link_gb_s * 1e9
    return sum(
        x.sent / (speed * min(x.rings / chip.links, 1.0) if x.rings else speed) for x in collectives
    )


def plan_program(
    case: Case,
    memory: MemoryParts,
    phase: PlannedPhase,
    name: str,
    cost: Cost,
    compiled: dict[str, Any],
) -> PlannedProgram:
    """The program `name`, with the bytes of each part of memory while it runs.

    `phase` is the program's phase by `planned_memory.program_phase`, and `compiled` is the answer
    of `compiler.compile_program`, or {} if the program was not compiled. The bytes of temporaries
    are those that the compiler counts in addition to the known parts, or else an estimate.
    """
    stage, included = stage_of(name)
    parts = memory.during(stage, case)
    parts |= dict.fromkeys(ABSENT.get(name, ()), 0)
    if name == "prefill" or is_decode(name):
        parts["decode copy"] = decode_copy_bytes(case)
    if is_decode(name):
        parts["trunk KV"], parts["suffix KV"] = kv_bytes(case, phase.sizes)
    others = sum(parts[part] for part in included)
    if "memory" in compiled:
        parts[TEMPORARIES] = max(compiled["memory"]["peak"] - others, 0)
    elif "needs" in compiled:  # the program did not fit: its bytes, arguments included
        parts[TEMPORARIES] = max(int(compiled["needs"]) - others, 0)
    else:
        parts[TEMPORARIES] = temporaries_guess(case, name, phase)
    is_update = stage == "train"  # only updates skip passes without tokens
    passes_made = planned_passes(case, case.cfg.ppo.minibatch).share if is_update else 1.0
    return PlannedProgram(name, cost, parts, compiled, passes_made)


def program_seconds(case: Case, program: PlannedProgram) -> dict[str, float]:
    """Lower bounds of the seconds of a program's call or decode step.

    There is one bound for each name in BOUNDS: 'compute', 'memory' and 'interconnect'.
    """
    return least_seconds(
        case, program.cost, sending_seconds(case.topology.chip, program.collectives)
    )


def least_seconds(case: Case, cost: Cost, sending: float) -> dict[str, float]:
    """Lower bounds of the seconds of a program that has the given cost.

    There is one bound for each name in BOUNDS: 'compute', 'memory' and 'interconnect'. The last
    bound is `sending`, the seconds that the program's collectives take.
    """
    chip = case.topology.chip
    return {
        "compute": cost.flops / (chip.bf16_tflops * 1e12),
        "memory": cost.bytes / (chip.hbm_gb_s * 1e9),
        "interconnect": sending,
    }
