"""The stages of an iteration: calls of each program, a lower bound of their time, and an estimate.

The bound assumes that a program reads at the memory's peak and does nothing else meanwhile. The
estimate is never less than the bound. It takes the compiler's cycles where they are known, and is
then a range: at its lower end collectives hide behind the products of a pass, at its upper end they
do not.
"""

from typing import NamedTuple

from vinejax.tools.plan.case import Case
from vinejax.tools.plan.cost import (
    calls_per_phase,
    columns_bytes,
    decode_cost,
    planned_passes,
    prefill_columns,
    prefill_cost,
)
from vinejax.tools.plan.planned_memory import (
    PlannedPhase,
    call_name,
    decode_name,
    main_phase,
    train_length,
    usual_length,
)
from vinejax.tools.plan.roofline import PlannedProgram, least_seconds, sending_seconds, stage_of

KERNEL_SPEED = 0.8  # assumed share of the memory's peak at which a kernel reads
LATENCY_S = 10e-6  # assumed latency of a collective


class PlannedStage(NamedTuple):
    """A part of an iteration, with a lower bound and an estimate of its time."""

    name: str
    calls: dict[str, float]  # program -> number of calls; for decoding, of steps
    seconds: float  # lower bound
    bound: str  # the largest of BOUNDS for the program that takes most of the time
    estimate: float  # seconds, by the compiler's cycles where they are known
    one_by_one: float  # seconds if no collective hides behind the products of a pass


class CallTimes(NamedTuple):
    """Seconds of a program's call; for decoding, of a step."""

    lower_bounds: dict[str, float]  # one for each of BOUNDS; the largest counts
    estimate: float = 0.0  # by the compiler's cycles; 0: unknown
    one_by_one: float = 0.0  # the same if no collective hides behind the products of a pass

    @property
    def bound(self) -> str:
        """The entry of BOUNDS that takes the longest."""
        return max(self.lower_bounds, key=self.lower_bounds.__getitem__)


def iteration_stages(
    case: Case, phases: list[PlannedPhase], programs: dict[str, PlannedProgram]
) -> list[PlannedStage]:
    """The stages of one iteration.

    The compiled prefill is that of the main phase, for the longest trunks. Scoring and updates are
    compiled for the longest rows. For shorter trunks and rows, cycles and the bytes of activations
    that are sent are taken to be the same per token.
    """
    usual = usual_length(case) / train_length(case)
    sizes = {name: 1.0 if stage_of(name)[0] == "rollout" else usual for name in programs}
    times = {
        name: _call(case, x, _in_rows(case, x, sizes[name]), sizes[name])
        for name, x in programs.items()
    }
    stages: list[PlannedStage] = []
    for i, phase in enumerate(phases):
        calls = calls_per_phase(case, phase)
        if i == 0:  # later phases use the same copy
            calls = {"decode copy": 1.0, **calls}
        stages.append(_engine_stage(case, phase, phases, programs, calls, times))
    ppo = case.cfg.ppo
    episodes = case.cfg.rollout.prompts * case.cfg.rollout.per_prompt
    # Log-probabilities by the policy and, if it is read, by the reference model. What the method's
    # state scores, such as a critic's values, takes as long as one of these passes.
    passes = 1.0 + case.method.reads_reference(case.cfg) + case.method.state.scores
    scored = {"score": passes * planned_passes(case, episodes).num_used}
    updates = float(ppo.epochs * -(-episodes // ppo.minibatch))
    updated = {name: updates for name in ("train_step", "critic_step") if name in programs}
    return [*stages, _stage("score", scored, times), _stage("train", updated, times)]


def _engine_stage(
    case: Case,
    phase: PlannedPhase,
    phases: list[PlannedPhase],
    programs: dict[str, PlannedProgram],
    calls: dict[str, float],
    times: dict[str, CallTimes],
) -> PlannedStage:
    """A phase of the engine with these calls; `times` has the times of the decoding copy."""
    main = main_phase(phases)
    size = phase.sizes.batch * prefill_columns(phase) / (main.sizes.batch * main.sizes.columns)
    sending = sending_seconds(case.topology.chip, programs["prefill"].collectives) * size
    least = least_seconds(case, prefill_cost(case, phase), sending)
    prefill = _call(case, programs["prefill"], least, size)
    steps = {
        call_name(n): _step(case, phase.in_shape(n), programs[decode_name(n, phase, phases)])
        for n in range(len(phase.shapes))
    }
    return _stage(phase.name, calls, {**times, "prefill": prefill, **steps})


def _in_rows(case: Case, program: PlannedProgram, size: float) -> dict[str, float]:
    """Lower bounds of the seconds of a call with rows of `size` times the compiled length.

    Collectives over `tensor` send activations, in proportion to the length. Those over the other
    axes send weights and gradients. Where another axis is as large as `tensor`, the two cannot be
    told apart, and all bytes count in full.
    """
    mesh, sent = case.cfg.mesh, program.collectives
    if mesh.tensor not in (mesh.data, mesh.fsdp, case.shards):
        sent = [x._replace(sent=x.sent * size) if x.group == mesh.tensor else x for x in sent]
    return least_seconds(case, program.cost, sending_seconds(case.topology.chip, sent))


def _call(
    case: Case, program: PlannedProgram, lower_bounds: dict[str, float], size: float
) -> CallTimes:
    """The times of a call with `size` times the tokens that the program was compiled for."""
    if not (seconds := _computing(case, program) * size):
        return CallTimes(lower_bounds)
    sending = lower_bounds["interconnect"] + _latency(program)
    return CallTimes(lower_bounds, max(seconds, sending), seconds + sending)


def _step(case: Case, phase: PlannedPhase, program: PlannedProgram) -> CallTimes:
    """The times of a decode step in the sizes of a phase.

    The estimate is the sum of the compiler's cycles, the reads of kernels and the transfers of
    collectives. They do not overlap, because the next product waits for a collective's sum. The
    compiler's cycles exclude three things:

    - kernels, which are assumed to read at KERNEL_SPEED of the peak and to compute meanwhile; by
      their instructions computing takes no longer (benchmarks/kernel_bundles.py);
    - collectives;
    - waits for the weights: few slots are multiplied with weights in less time than it takes to
      read the weights, so the time of a step is at least that of its reads.
    """
    chip, seconds = case.topology.chip, _computing(case, program)
    sending = sending_seconds(chip, program.collectives)
    cost = decode_cost(case, phase)
    lower_bounds = least_seconds(case, cost, sending)
    if not seconds:
        return CallTimes(lower_bounds)
    read = columns_bytes(case, phase) if phase.sizes.storage.read_by_kernel else 0.0
    peak = chip.hbm_gb_s * 1e9
    seconds = max(seconds, (cost.bytes - read) / peak)
    step = seconds + read / (KERNEL_SPEED * peak) + sending + _latency(program)
    return CallTimes(lower_bounds, step, step)


def _computing(case: Case, program: PlannedProgram) -> float:
    """Seconds of the compiler's cycles of a call or decode step; 0 if they are not known."""
    clock_ghz = case.topology.chip.clock_ghz
    return program.cycles / (clock_ghz * 1e9) if clock_ghz else 0.0


def _latency(program: PlannedProgram) -> float:
    return LATENCY_S * sum(x.count for x in program.collectives)


def _stage(name: str, calls: dict[str, float], times: dict[str, CallTimes]) -> PlannedStage:
    """A stage from the number of calls of each program and the `times` of one call."""
    totals = {x: count * max(times[x].lower_bounds.values()) for x, count in calls.items()}
    longest = max(totals, key=totals.__getitem__)
    estimate, one_by_one = (
        sum(max(totals[x], count * getattr(times[x], kind)) for x, count in calls.items())
        for kind in ("estimate", "one_by_one")
    )
    bound = times[longest].bound
    return PlannedStage(name, calls, sum(totals.values()), bound, estimate, one_by_one)
