"""Shows a plan as tables in the terminal, and converts it to a dict for a JSON file."""

import dataclasses
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from vinejax.runtime.workdir import package_versions
from vinejax.tools.plan.aot.hlo import totals_by_kind
from vinejax.tools.plan.aot.iteration_time import PlannedStage
from vinejax.tools.plan.case import Case
from vinejax.tools.plan.cost import useful_flops
from vinejax.tools.plan.planned_memory import PlannedPhase, is_decode, mean_tokens
from vinejax.tools.plan.roofline import BOUNDS, TEMPORARIES, PlannedProgram, program_seconds
from vinejax.tools.plan.settings import PlanConfig

GIB = 2**30
PARTS = "weights, optimizer, reference, critic, decode copy, trunk KV, suffix KV".split(", ")


class Plan(NamedTuple):
    """All parts of the plan of a run on a topology."""

    case: Case
    phases: list[PlannedPhase]
    programs: list[PlannedProgram]
    stages: list[PlannedStage]  # [] if programs were not planned completely
    advice: dict[str, list[str]]  # program -> changes that would make it fit
    notes: list[str]

    @property
    def fits(self) -> bool:
        """Whether every program compiles and fits in memory."""
        return not any(self.verdict(program) for program in self.programs)

    def verdict(self, program: PlannedProgram) -> str:
        """The reason why a program does not fit or does not compile; '' if it fits and compiles."""
        if program.total > self.case.limit:
            return "does not fit in memory"
        if program.error == "time":
            return (
                f"did not compile within plan.timeout_s = {PlanConfig.of(self.case.cfg).timeout_s}"
            )
        return program.error


def print_plan(plan: Plan, console: Console) -> None:
    """Prints the tables, the notes, and changes for the programs that do not fit."""
    case = plan.case
    cfg = case.cfg
    mesh = cfg.mesh
    model = case.model.cfg
    most = max((phase.sizes.slots for phase in plan.phases), default=0)
    console.print(
        f"{case.topology.name}: {case.topology.chips} chips on {case.topology.hosts} hosts, "
        f"data={mesh.data} fsdp={mesh.fsdp} tensor={mesh.tensor}; {cfg.method}, "
        f"{model.num_layers} layers of {model.width}, "
        f"{cfg.rollout.slots or most * case.shards} slots",
        highlight=False,
    )
    print_whole(memory_table(plan), console)
    if plan.stages:
        print_whole(program_table(plan), console)
        if any(program.kernels for program in plan.programs):
            print_whole(kernel_table(plan), console)
        print_whole(iteration_table(plan), console)
    for line in [*utilisation_lines(plan), *price_lines(plan)]:
        console.print(line, highlight=False)
    for note in plan.notes:
        console.print(note, highlight=False, markup=False)
    for program in plan.programs:
        if verdict := plan.verdict(program):
            # The compiler's words may have brackets, which would be markup.
            console.print(f"{program.name}: {verdict}", highlight=False, markup=False)
        for line in plan.advice.get(program.name, []):
            console.print(f"  {line}", highlight=False, markup=False)
    console.print("It fits." if plan.fits else "It does not fit.", highlight=False)


def print_whole(table: Table, console: Console) -> None:
    """Prints a table in its full width, also where the console is narrower.

    Rich would cut the cells of a wider table, and a number without its last digits looks whole.
    """
    unlimited = console.options.update(width=10_000)
    width = console.width
    console.width = max(width, console.measure(table, options=unlimited).maximum)
    console.print(table)
    console.width = width


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for number, name in enumerate(columns):
        justify = "left" if number == 0 else "right"
        table.add_column(name, justify=justify, no_wrap=True, overflow="fold")
    return table


def memory_table(plan: Plan) -> Table:
    """A table of the GiB per chip that each part of memory takes while each program runs."""
    table = _table("HBM per chip, GiB", "", *(program.name for program in plan.programs))
    for part in [*PARTS, TEMPORARIES]:
        sizes = [program.parts.get(part, 0) for program in plan.programs]
        if any(sizes):
            table.add_row(part, *(f"{size / GIB:.2f}" if size else "" for size in sizes))
    table.add_section()
    table.add_row("total", *(f"{program.total / GIB:.2f}" for program in plan.programs))
    limit = f"{plan.case.limit / GIB:.2f}"
    table.add_row("limit", *(limit for _ in plan.programs))
    return table


def program_table(plan: Plan) -> Table:
    """A table of programs: cost, collectives and least times per call, or per decode step."""
    table = _table(
        "Per chip and call (decode: per step); least times in milliseconds",
        *("", "TFLOP", "GB", "GB sent", *BOUNDS, "bound"),
    )
    for program in plan.programs:
        times = program_seconds(plan.case, program)
        figures = [program.cost.flops / 1e12, program.cost.bytes / 1e9, program.sent / 1e9]
        figures += [1e3 * times[bound] for bound in BOUNDS]
        bound = max(times, key=times.__getitem__)
        table.add_row(program.name, *(f"{figure:.3g}" for figure in figures), bound)
        for kind, (count, sent) in totals_by_kind(program.collectives).items():
            table.add_row(f"  {kind} x {count:g}", "", "", f"{sent / 1e9:.3g}")
    return table


def kernel_table(plan: Plan) -> Table:
    """A table of what the compiler for GPUs made of each program."""
    columns = ("kernels", "graphs", "outside", "GB moved", "copied in loop", "spills")
    table = _table("Kernels per call (decode: per step)", "", *columns)
    for program in plan.programs:
        if not program.kernels:
            continue
        found = program.compiled
        graphs, outside = found["graphs"] or ("?", "?")
        copied = f"{found['largest_copy'] / 2**10:.3g} KiB" if is_decode(program.name) else ""
        spills = {True: "yes", False: "no", None: ""}[found["spills"]]
        counts = (f"{program.kernels:.0f}", str(graphs), str(outside), f"{program.moved / 1e9:.3g}")
        table.add_row(program.name, *counts, copied, spills)
    return table


def iteration_table(plan: Plan) -> Table:
    """A table of an iteration's stages: lower bound and estimate of the time, and the calls."""
    table = _table("Seconds of an iteration", "", "at least", "estimate", "bound", "calls")
    for stage in plan.stages:
        calls = ", ".join(f"{count:.0f} {name}" for name, count in stage.calls.items())
        table.add_row(stage.name, f"{stage.seconds:.1f}", _range([stage]), stage.bound, calls)
    table.add_section()
    seconds = sum(stage.seconds for stage in plan.stages)
    table.add_row("total", f"{seconds:.1f}", _range(plan.stages))
    return table


def _range(stages: list[PlannedStage]) -> str:
    """The estimated seconds of all stages together, as '1.5 to 2.9', or '1.5' for equal ends."""
    low, high = sum(x.estimate for x in stages), sum(x.one_by_one for x in stages)
    return _between(f"{low:.1f}", f"{high:.1f}")


def _between(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def utilisation_lines(plan: Plan) -> list[str]:
    """A line with the updates' model FLOP/s utilisation, without padding; [] without updates."""
    chip = plan.case.topology.chip
    at_peak = useful_flops(plan.case) / (plan.case.topology.chips * chip.bf16_tflops * 1e12)
    for stage in plan.stages:
        if stage.name == "train":
            low, high = at_peak / stage.one_by_one, at_peak / stage.estimate
            share = _between(f"{low:.1%}", f"{high:.1%}")
            return [f"Updates use {share} of the chips' peak on useful tokens (MFU)."]
    return []


def price_lines(plan: Plan) -> list[str]:
    """Lines with two ratios of times; [] if no phase samples continuations for values.

    The first ratio is the time of an iteration divided by its time without these continuations.
    The second is the time of a sampled token divided by the time of a trained token.
    """
    case, stages = plan.case, {stage.name: stage for stage in plan.stages}
    if "values" not in stages:
        return []
    total, values = (
        [sum(getattr(x, kind) for x in among) for kind in ("estimate", "one_by_one")]
        for among in (plan.stages, [stages["values"]])
    )
    ratios = [whole / (whole - part) for whole, part in zip(total, values, strict=True)]
    low, high = (f"{ratio:.2f}" for ratio in sorted(ratios))
    ratio = _between(low, high)
    phase = next(phase for phase in plan.phases if phase.name == "values")
    per_sampled = stages["values"].estimate / (phase.branches * phase.tokens)
    episodes = case.cfg.rollout.prompts * case.cfg.rollout.per_prompt
    training = stages["score"].estimate + stages["train"].estimate
    price = per_sampled / (training / (episodes * mean_tokens(case)))
    return [
        f"An iteration takes {ratio} times what it would take without values.",
        f"A sampled token takes {price:.2g} of the time of a trained one.",
    ]


def _phase_as_json(phase: PlannedPhase) -> dict[str, Any]:
    shapes = [dataclasses.asdict(sizes) for sizes in phase.shapes]
    return phase._asdict() | {"sizes": shapes[0], "shapes": shapes}


def as_json(plan: Plan) -> dict[str, Any]:
    """The whole plan as a dict for JSON, in bytes and seconds, which are not rounded."""
    case = plan.case
    return {
        "topology": {
            "name": case.topology.name,
            "chips": case.topology.chips,
            "hosts": case.topology.hosts,
            "mesh": dict(case.mesh.shape),
            "limit_bytes": case.limit,
        },
        "versions": package_versions(("jax", "libtpu", "jax-cuda13-plugin")),
        "model": dataclasses.asdict(case.model.cfg),
        "compute": dataclasses.asdict(case.model.compute),
        "phases": list(map(_phase_as_json, plan.phases)),
        "programs": {
            program.name: {
                "memory_bytes": program.parts | {"together": program.total},
                "work": program.cost._asdict(),
                "seconds": program_seconds(case, program),
                "collectives": {
                    kind: {"times": count, "bytes_sent": sent}
                    for kind, (count, sent) in totals_by_kind(program.collectives).items()
                },
                "compiled": program.compiled,
                "verdict": plan.verdict(program),
                "advice": plan.advice.get(program.name, []),
            }
            for program in plan.programs
        },
        "iteration": [stage._asdict() for stage in plan.stages],
        "notes": plan.notes,
        "fits": plan.fits,
    }
