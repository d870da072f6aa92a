"""`--mode=plan`: what a run would take of the chips that `topology` names, before they are rented.

The programs of an iteration are compiled for the topology by the TPU's own compiler, on whatever
machine this is; nothing runs, no weights are read, and the network is not asked.
"""

import dataclasses
import json
import os
from typing import Any

from etils import epath
from rich.console import Console

from vinejax.methods import find_method
from vinejax.plan.advice import advice
from vinejax.plan.case import Case, open_case
from vinejax.plan.compiler import check_compiler, compile_program
from vinejax.plan.memory import Phase, fixed_parts, main_phase, parts
from vinejax.plan.roofline import TEMPORARIES, Planned, iteration, planned
from vinejax.plan.table import Plan, as_json, show
from vinejax.plan.work import Work, analytic
from vinejax.runtime.workdir import write_atomic
from vinejax.settings import Config

FOLDER = "plan"  # of the workdir
WIDTH = 120  # of the tables, where the output is no screen
BY_ARITHMETIC = (
    "No compiler for {kind} at hand: temporaries are guessed by arithmetic, and there are no "
    "collectives, so no interconnect times."
)
SAMPLES_FIRST = (
    "{method}: its updates are planned as those of a policy gradient, its sampling as that of "
    "rollout.prompts problems."
)
HOPELESS = "Nothing was compiled: what must lie on a chip is more than it has."


def plan_run(cfg: Config, path: str | os.PathLike) -> bool:
    """Prints the plan, writes it to `<workdir>/plan/<topology>.json`; whether it fits.

    Raises ConfigError or ModelError for what cannot be planned: see `case.open_case`.
    """
    case = open_case(cfg)
    warning = check_compiler(case)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    plan = make_plan(case, dataclasses.asdict(cfg), console)
    if warning:
        plan.notes.append(warning)
    show(plan, console)
    folder = epath.Path(path) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{case.topology.name.replace(':', '-')}.json"
    write_atomic(file, json.dumps(as_json(plan), indent=1) + "\n")
    console.print(f"in full: {file}", soft_wrap=True)
    return plan.fits


def make_plan(case: Case, config: dict[str, Any], console: Console) -> Plan:
    """Compiles what there is a compiler for, unless arithmetic alone says that nothing will fit."""
    try:
        held, phases = parts(case)
    except ValueError as error:  # of the engine: there is no room for one slot
        return without_slots(case, str(error))
    phase = main_phase(phases)
    work = analytic(case, phase)

    def program(name: str, compiled: dict[str, Any]) -> Planned:
        return planned(case, held, phase, name, work[name], compiled)

    guessed = [program(name, {}) for name in work]
    if hopeless := [each for each in guessed if least(each) > case.limit]:
        told = {each.name: advice(case, phase, each) for each in hopeless}
        return Plan(case, phases, guessed, [], told, [HOPELESS])
    if case.platform == "gpu":
        note = BY_ARITHMETIC.format(kind=case.topology.kind)
        return finished(case, phases, guessed, [note])
    compiled = []
    for name in work:
        with console.status(f"compiling {name} for {case.topology.name}"):
            found = compile_program(case, config, name, case.cfg.plan.timeout_s)
        how = f"in {found['compile_s']:.0f} s" if "compile_s" in found else "not"
        console.print(f"{name}: compiled {how}")
        compiled.append(program(name, found))
    notes = [
        f"{each.name}: the compiler gathers {count} arrays whole ('[SPMD] Involuntary full "
        "rematerialization')"
        for each in compiled
        if (count := each.compiled.get("gathered"))
    ]
    return finished(case, phases, compiled, notes)


def without_slots(case: Case, error: str) -> Plan:
    """The plan of a slice on which decoding has no room for any keys and values."""
    held = fixed_parts(case)
    there = held.of("rollout", case) | {TEMPORARIES: 0}
    decode = Planned("decode", Work(0, 0), there, {"error": error})
    there = held.of("train", case) | {TEMPORARIES: held.weights}  # the gradients, at least
    both = [decode, Planned("train_step", Work(0, 0), there, {})]
    told = {x.name: advice(case, None, x) for x in both if x.error or x.total > case.limit}
    return Plan(case, [], both, [], told, [HOPELESS])


def least(program: Planned) -> int:
    """Bytes that a program takes at least: what lies there, and in an update the gradients."""
    known = program.total - program.parts[TEMPORARIES]
    return known + (program.parts["weights"] if program.name == "train_step" else 0)


def finished(case: Case, phases: list[Phase], programs: list[Planned], notes: list[str]) -> Plan:
    phase = main_phase(phases)
    told = {each.name: advice(case, phase, each) for each in programs if each.total > case.limit}
    stages = iteration(case, phases, {each.name: each for each in programs})
    if find_method(case.cfg.method).credit is None:
        notes = [*notes, SAMPLES_FIRST.format(method=case.cfg.method)]
    return Plan(case, phases, programs, stages, told, notes)
