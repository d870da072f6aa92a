"""`--mode=plan` predicts memory and time of a run on a topology, without its devices.

On any machine, the compiler for TPUs or for GPUs compiles the programs of an iteration for the
topology. Nothing runs, no weights are read, and no network is used.
"""

import json
import os
from typing import Any

from rich.console import Console

from vinejax.core.settings import Config, MeshConfig, as_tree
from vinejax.runtime.topology import parse_topology
from vinejax.runtime.workdir import resolved_folder, write_atomic
from vinejax.tools.plan.aot.advice import advise
from vinejax.tools.plan.aot.compiler import (
    GATHERED,
    check_compiler,
    compile_program,
    missing_gpu_compiler,
)
from vinejax.tools.plan.aot.iteration_time import iteration_stages
from vinejax.tools.plan.aot.plan_table import Plan, as_json, print_plan
from vinejax.tools.plan.case import Case, open_case
from vinejax.tools.plan.cost import Cost, planned_passes, program_costs
from vinejax.tools.plan.planned_memory import (
    PlannedPhase,
    fixed_parts,
    memory_and_phases,
    program_phase,
)
from vinejax.tools.plan.propose import row_text, with_proposed_row
from vinejax.tools.plan.roofline import TEMPORARIES, PlannedProgram, plan_program
from vinejax.tools.plan.settings import PlanConfig

FOLDER = "plan"  # in the workdir
WIDTH = 120  # columns of the tables, if the output is not a terminal
BY_ARITHMETIC = (
    "No compiler for {kind} on this machine, since {missing}. Temporaries are estimated by "
    "arithmetic; kernels, collectives and their times are missing."
)
GPU_MODEL = (
    "Estimates for GPUs are a model, fitted to a decode step on an H200 and checked on no other "
    "card."
)
SAMPLES_FIRST = (
    "{method}: updates are planned as those of a policy gradient method, sampling as that of "
    "rollout.prompts problems."
)
PACKED_ROWS = (
    "Packed rows: an update makes {used} of {all} passes, by plan.prompt_tokens and plan.tokens; "
    "packing does not change the memory of a pass."
)
PROPOSED = "`meshes` has no row for {name}. The plan is for this one, by arithmetic:\n    {row}"
NOT_COMPILED = "Not compiled: weights and caches alone exceed the chip's memory."


def plan_run(cfg: Config, path: str | os.PathLike) -> bool:
    """Prints the plan and writes it to `<workdir>/plan/<topology>.json`; returns whether it fits.

    Raises ConfigError or ModelError if the run cannot be planned: see `case.open_case`.
    """
    has_row = not cfg.topology or cfg.topology in cfg.meshes or cfg.mesh != MeshConfig()
    if not has_row:
        cfg = with_proposed_row(cfg, parse_topology(cfg.topology))
    case = open_case(cfg)
    warning = check_compiler(case)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    plan = make_plan(case, as_tree(cfg), console)
    if warning:
        plan.notes.append(warning)
    if not has_row:
        plan.notes.append(PROPOSED.format(name=cfg.topology, row=row_text(cfg, cfg.topology)))
    print_plan(plan, console)
    folder = resolved_folder(path) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{case.topology.name.replace(':', '-')}.json"
    write_atomic(file, json.dumps(as_json(plan), indent=1) + "\n")
    console.print(f"in full: {file}", soft_wrap=True, markup=False)
    return plan.fits


def make_plan(case: Case, config: dict[str, Any], console: Console) -> Plan:
    """The plan of a run; compiles programs unless arithmetic shows that a program cannot fit."""
    try:
        memory, phases = memory_and_phases(case)
    except ValueError as error:  # raised by the engine: not even one slot fits
        return plan_without_slots(case, str(error))
    costs = program_costs(case, phases)

    def program(name: str, compiled: dict[str, Any]) -> PlannedProgram:
        phase = program_phase(name, phases)
        return plan_program(case, memory, phase, name, costs[name], compiled)

    estimated = [program(name, {}) for name in costs]
    if too_large := [x for x in estimated if least_bytes(x) > case.limit]:
        changes = {x.name: advise(case, program_phase(x.name, phases), x) for x in too_large}
        return Plan(case, phases, estimated, [], changes, [NOT_COMPILED])
    is_gpu = case.platform == "gpu"
    if is_gpu and (missing := missing_gpu_compiler()):
        note = BY_ARITHMETIC.format(kind=case.topology.kind, missing=missing)
        return finished_plan(case, phases, estimated, [note])
    compiled = []
    notes = [GPU_MODEL] if is_gpu else []
    for name in costs:
        with console.status(f"compiling {name} for {case.topology.name}"):
            answer = compile_program(case, config, name, PlanConfig.of(case.cfg).timeout_s)
        how = f"in {answer['compile_s']:.0f} s" if "compile_s" in answer else "not"
        console.print(f"{name}: compiled {how}")
        compiled.append(program(name, answer))
        if count := answer.get("gathered"):
            why = f"'[SPMD] {GATHERED}'"
            notes.append(f"{name}: the compiler replicates {count} arrays on all chips ({why})")
    return finished_plan(case, phases, compiled, notes)


def plan_without_slots(case: Case, error: str) -> Plan:
    """The plan for a chip without enough memory for the keys and values of one slot."""
    memory = fixed_parts(case)
    parts = memory.during("rollout", case) | {TEMPORARIES: 0}
    decode = PlannedProgram("decode", Cost(0, 0), parts, {"error": error})
    parts = memory.during("train", case) | {TEMPORARIES: memory.weights}  # at least the gradients
    programs = [decode, PlannedProgram("train_step", Cost(0, 0), parts, {})]
    changes = {x.name: advise(case, None, x) for x in programs if x.error or x.total > case.limit}
    return Plan(case, [], programs, [], changes, [NOT_COMPILED])


def least_bytes(program: PlannedProgram) -> int:
    """A lower bound of a program's bytes per chip, which counts only gradients as temporaries."""
    without_temporaries = program.total - program.parts[TEMPORARIES]
    gradients = program.parts["weights"] if program.name == "train_step" else 0
    return without_temporaries + gradients


def finished_plan(
    case: Case, phases: list[PlannedPhase], programs: list[PlannedProgram], notes: list[str]
) -> Plan:
    """The plan with an iteration's times, and with advice for each program that does not fit."""
    too_large = [x for x in programs if x.total > case.limit]
    changes = {x.name: advise(case, program_phase(x.name, phases), x) for x in too_large}
    stages = iteration_stages(case, phases, {x.name: x for x in programs})
    if case.cfg.ppo.packing:
        passes = planned_passes(case, case.cfg.ppo.minibatch)
        notes = [*notes, PACKED_ROWS.format(used=passes.num_used, all=passes.num_all)]
    if case.method.credit is None:
        notes = [*notes, SAMPLES_FIRST.format(method=case.cfg.method)]
    return Plan(case, phases, programs, stages, changes, notes)
