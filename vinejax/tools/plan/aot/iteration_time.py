"""Lower bounds and estimates of the time of an iteration's stages.

The lower bound is the one of `roofline.py`. The estimate uses the TPU compiler's cycles if they are
known, or a model of a GPU's kernels, and is never less than the bound. It is a range: at the lower
end we assume that collectives overlap with the computation of a pass, at the upper end that they do
not.
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

KERNEL_SPEED = 0.8  # assumed reading speed of a kernel, as a share of the memory's peak
LATENCY_S = 10e-6  # assumed latency of a collective
# The model of a program on a GPU: each kernel takes KERNEL_S and the time of its bytes, at a share
# of the memory's peak; products take their FLOPs besides, at a share of the peak. An H200 took 2.45
# ms for a decode step of SmolLM2's shape in 64 slots (benchmarks/README.md); 829 kernels moved 2.34
# GB there, without our attention kernel, which leaves KERNEL_S. The shares are assumed.
KERNEL_S = 2.25e-6
MOVED_SHARE = 0.87
PRODUCT_SHARE = 0.65


class PlannedStage(NamedTuple):
    """A part of an iteration, with a lower bound and an estimate of its time."""

    name: str
    calls: dict[str, float]  # program -> number of calls, or of steps for decoding
    seconds: float  # lower bound
    bound: str  # the largest of BOUNDS for the program that takes most of the time
    estimate: float  # seconds if collectives overlap with the computation of a pass
    one_by_one: float  # seconds if they do not overlap


class CallTimes(NamedTuple):
    """Seconds of one call of a program or, for decoding, of one step."""

    lower_bounds: dict[str, float]  # one for each of BOUNDS; the time is at least the largest
    estimate: float = 0.0  # with overlapping collectives; 0: unknown
    one_by_one: float = 0.0  # the same if collectives do not overlap with computation

    @property
    def bound(self) -> str:
        """The entry of BOUNDS, such as 'memory', whose lower bound of the time is the largest."""
        return max(self.lower_bounds, key=self.lower_bounds.__getitem__)


def iteration_stages(
    case: Case, phases: list[PlannedPhase], programs: dict[str, PlannedProgram]
) -> list[PlannedStage]:
    """The stages of one iteration.

    The prefill was compiled for the main phase, with the longest trunks. Scoring and updates were
    compiled for the longest rows. For shorter trunks and rows we assume that the cycles per token,
    and the bytes of activations that devices send per token, are the same as for the longest.
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
    # Log-probabilities by the policy and, if the method reads them, by the reference model. Scores
    # of the method's state, such as a critic's values, should take as long as one such pass.
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
    """The stage of a phase of the engine; `calls` maps its programs to numbers of calls.

    From `times` the function takes only the time of the program 'decode copy'. It computes the
    times of the prefill and of the decode steps itself.
    """
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
    """Lower bounds of the seconds of a call whose rows have `size` times the compiled length.

    Collectives over the mesh axis `tensor` send activations, in proportion to the length, and
    collectives over the other axes send weights and gradients. We tell them apart by the size of
    the axis. If another axis is as large as `tensor`, the bytes are not scaled.
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
    """The times of a decode step with the sizes of a phase.

    The estimate is a sum of three times, which do not overlap, because each matrix product waits
    for the result of the collective before it:

    - the compiler's cycles or the model of a GPU, but at least the time to move all bytes that
      Pallas kernels do not read, because the cycles include no waits for memory;
    - the reads of Pallas kernels, at the share KERNEL_SPEED of the memory's peak speed; computing
      in a kernel takes no longer than its reads (benchmarks/kernel_bundles.py);
    - the transfers and latencies of collectives.
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
    """The seconds that a call or decode step computes; 0 if unknown.

    They are the TPU compiler's cycles at the chip's clock, or the model of a GPU's kernels.
    """
    chip = case.topology.chip
    if program.kernels:
        moving = program.moved / (MOVED_SHARE * chip.hbm_gb_s * 1e9)
        products = program.cost.flops / (PRODUCT_SHARE * chip.bf16_tflops * 1e12)
        return KERNEL_S * program.kernels + moving + products
    return program.cycles / (chip.clock_ghz * 1e9) if chip.clock_ghz else 0.0


def _latency(program: PlannedProgram) -> float:
    return LATENCY_S * sum(x.count for x in program.collectives)


def _stage(name: str, calls: dict[str, float], times: dict[str, CallTimes]) -> PlannedStage:
    """The stage `name`, which calls a program p `calls[p]` times; one call takes `times[p]`."""
    totals = {x: count * max(times[x].lower_bounds.values()) for x, count in calls.items()}
    longest = max(totals, key=totals.__getitem__)
    estimate, one_by_one = (
        sum(max(totals[x], count * getattr(times[x], kind)) for x, count in calls.items())
        for kind in ("estimate", "one_by_one")
    )
    bound = times[longest].bound
    return PlannedStage(name, calls, sum(totals.values()), bound, estimate, one_by_one)
