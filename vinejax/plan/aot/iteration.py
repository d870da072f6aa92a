"""The stages of an iteration: calls of each program, a lower bound of their time, and an estimate.

The bound assumes that a program reads at the memory's peak and does nothing else meanwhile. The
estimate, which is never less, takes the compiler's cycles for decode steps where they are known.
"""

from typing import NamedTuple

from vinejax.plan.case import Case
from vinejax.plan.cost import (
    calls_per_phase,
    columns_bytes,
    decode_cost,
    planned_passes,
    prefill_cost,
)
from vinejax.plan.memory import PlannedPhase, decode_name, main_phase
from vinejax.plan.roofline import PlannedProgram, least_seconds, program_seconds

KERNEL_SPEED = 0.8  # assumed share of the memory's peak at which a kernel reads


class Stage(NamedTuple):
    """A part of an iteration, with a lower bound and an estimate of its time."""

    name: str
    calls: dict[str, float]  # program -> calls; for decoding, steps
    seconds: float  # lower bound
    bound: str  # the largest of BOUNDS for the program that takes most of the time
    estimate: float  # seconds, with decode steps by the compiler's cycles where they are known


class Times(NamedTuple):
    """Seconds of a program's call; for decoding, of a step."""

    lower_bounds: dict[str, float]  # one for each of BOUNDS; the largest counts
    estimate: float = 0.0  # by the compiler; 0: unknown

    @property
    def bound(self) -> str:
        """The entry of BOUNDS that takes the longest."""
        return max(self.lower_bounds, key=self.lower_bounds.__getitem__)


def iteration_stages(
    case: Case, phases: list[PlannedPhase], programs: dict[str, PlannedProgram]
) -> list[Stage]:
    """The stages of one iteration.

    Only the main phase's prefill is compiled; other prefills are taken to send as much per token.
    """
    times = {name: Times(program_seconds(case, x)) for name, x in programs.items()}
    main = main_phase(phases)
    stages = []
    for i, phase in enumerate(phases):
        calls = calls_per_phase(case, phase)
        if i == 0 or phase.int8:  # otherwise the phase uses the copy of the one before
            calls = {"decode copy": 1.0, **calls}
        size = phase.sizes.batch * phase.sizes.columns / (main.sizes.batch * main.sizes.columns)
        sending = programs["prefill"].sending_seconds(case.topology.chip) * size
        prefill = Times(least_seconds(case, prefill_cost(case, phase), sending))
        step = _step(case, phase, programs[decode_name("decode", phase, phases)])
        phase_times = {**times, "prefill": prefill, "decode": step}
        if phase.drain:
            program = programs[decode_name("drain", phase, phases)]
            phase_times["drain"] = _step(case, phase._replace(sizes=phase.drain), program)
        stages.append(_stage(phase.name, calls, phase_times))
    ppo = case.cfg.ppo
    episodes = case.cfg.rollout.prompts * case.cfg.rollout.per_prompt
    # Log-probabilities by the policy and the reference model; what the method's state scores, a
    # critic's values for instance, takes as long.
    passes = 3.0 if case.method.state.scores else 2.0
    scored = {"score": passes * planned_passes(case, episodes).used}
    updates = float(ppo.epochs * -(-episodes // ppo.minibatch))
    updated = {name: updates for name in ("train_step", "critic_step") if name in programs}
    return [*stages, _stage("score", scored, times), _stage("train", updated, times)]


def _step(case: Case, phase: PlannedPhase, program: PlannedProgram) -> Times:
    """The times of a decode step in the sizes of a phase.

    The estimate is the sum of the compiler's cycles, the reads of kernels and the transfers of
    collectives, which do not overlap: the next product waits for a collective's sum. The compiler's
    cycles include neither kernels, which are assumed to read at KERNEL_SPEED of the peak, nor
    collectives.
    """
    chip, cycles = case.topology.chip, program.compiled.get("loop_cycles", 0.0)
    sending = program.sending_seconds(chip)
    lower_bounds = least_seconds(case, decode_cost(case, phase), sending)
    if not cycles or not chip.clock_ghz:
        return Times(lower_bounds)
    read = columns_bytes(case, phase) if phase.sizes.storage.read_by_kernel else 0.0
    kernels = read / (KERNEL_SPEED * chip.hbm_gb_s * 1e9)
    return Times(lower_bounds, cycles / (chip.clock_ghz * 1e9) + kernels + sending)


def _stage(name: str, calls: dict[str, float], times: dict[str, Times]) -> Stage:
    """A stage by the number of calls of each program and the `times` of one call."""
    totals = {x: count * max(times[x].lower_bounds.values()) for x, count in calls.items()}
    longest = max(totals, key=totals.__getitem__)
    estimates = (max(totals[x], count * times[x].estimate) for x, count in calls.items())
    return Stage(name, calls, sum(totals.values()), times[longest].bound, sum(estimates))
