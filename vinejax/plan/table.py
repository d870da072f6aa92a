"""The plan for people, and for programs: tables on the screen, and a dict for a JSON file."""

import dataclasses
import importlib.metadata
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from vinejax.plan.case import Case
from vinejax.plan.hlo import totals
from vinejax.plan.memory import Phase
from vinejax.plan.roofline import BOUNDS, TEMPORARIES, Planned, Stage, seconds

GIB = 2**30
PARTS = (
    *("weights", "optimizer", "reference", "critic", "decode copy", "trunk KV", "suffix KV"),
    TEMPORARIES,
)


@dataclasses.dataclass(frozen=True)
class Plan:
    case: Case
    phases: list[Phase]
    programs: list[Planned]
    stages: list[Stage]  # [] where programs are missing
    advice: dict[str, list[str]]  # of programs that have no room
    notes: list[str]

    @property
    def fits(self) -> bool:
        return not any(self.verdict(program) for program in self.programs)

    def verdict(self, program: Planned) -> str:
        """Why the run cannot be made with this program, or ''."""
        if program.total > self.case.limit:
            return "has no room"
        if program.error == "time":
            return f"did not compile within plan.timeout_s = {self.case.cfg.plan.timeout_s}"
        return program.error


def show(plan: Plan, console: Console) -> None:
    case, mesh = plan.case, plan.case.cfg.mesh
    cfg, model = case.cfg, case.model.cfg
    console.print(
        f"{case.topology.name}: {case.topology.chips} chips on {case.topology.hosts} hosts, "
        f"data={mesh.data} fsdp={mesh.fsdp} tensor={mesh.tensor}; {cfg.method}, "
        f"{model.num_layers} layers of {model.width}, {cfg.rollout.slots} slots",
        highlight=False,
    )
    console.print(memory_table(plan))
    if plan.stages:
        console.print(program_table(plan))
        console.print(iteration_table(plan))
    for note in plan.notes:
        console.print(note, highlight=False)
    for program in plan.programs:
        if verdict := plan.verdict(program):
            console.print(f"{program.name}: {verdict}", highlight=False)
        for line in plan.advice.get(program.name, []):
            console.print(f"  {line}", highlight=False)
    console.print("It fits." if plan.fits else "It does not fit.", highlight=False)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for number, name in enumerate(columns):
        justify = "left" if number == 0 else "right"
        table.add_column(name, justify=justify, no_wrap=True, overflow="fold")
    return table


def memory_table(plan: Plan) -> Table:
    """GiB of a chip by part, while each program runs."""
    table = _table("HBM of a chip, GiB", "", *(program.name for program in plan.programs))
    for part in PARTS:
        sizes = [program.parts.get(part, 0) for program in plan.programs]
        if any(sizes):
            table.add_row(part, *(f"{size / GIB:.2f}" if size else "" for size in sizes))
    table.add_section()
    table.add_row("together", *(f"{program.total / GIB:.2f}" for program in plan.programs))
    limit = f"{plan.case.limit / GIB:.2f}"
    table.add_row("limit", *(limit for _ in plan.programs))
    return table


def program_table(plan: Plan) -> Table:
    """Work, collectives and least times of a call (of the decode loop, of a step)."""
    table = _table(
        "A call on a chip (of decode, a step); at best, in milliseconds",
        *("", "TFLOP", "GB", "GB sent", *BOUNDS, "bound"),
    )
    for program in plan.programs:
        times = seconds(plan.case, program.work, program.sent)
        table.add_row(
            program.name, f"{program.work.flops / 1e12:.3g}", f"{program.work.bytes / 1e9:.3g}",
            f"{program.sent / 1e9:.3g}", *(f"{1e3 * times[bound]:.3g}" for bound in BOUNDS),
            max(times, key=times.__getitem__),
        )  # fmt: skip
        for kind, (count, sent) in totals(program.collectives).items():
            table.add_row(f"  {kind} x {count:g}", "", "", f"{sent / 1e9:.3g}")
    return table


def iteration_table(plan: Plan) -> Table:
    table = _table("An iteration, at best", "", "s", "bound", "calls")
    for stage in plan.stages:
        calls = ", ".join(f"{count:.0f} {name}" for name, count in stage.calls.items())
        table.add_row(stage.name, f"{stage.seconds:.1f}", stage.bound, calls)
    table.add_section()
    table.add_row("together", f"{sum(stage.seconds for stage in plan.stages):.1f}")
    return table


def as_json(plan: Plan) -> dict[str, Any]:
    """All of it; bytes and seconds, nothing rounded."""
    case = plan.case
    packages = ("jax", "libtpu")
    versions = {}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "topology": {
            "name": case.topology.name,
            "chips": case.topology.chips,
            "hosts": case.topology.hosts,
            "mesh": dict(case.mesh.shape),
            "limit_bytes": case.limit,
        },
        "versions": versions,
        "model": dataclasses.asdict(case.model.cfg),
        "compute": dataclasses.asdict(case.model.compute),
        "phases": [
            phase._asdict() | {"sizes": dataclasses.asdict(phase.sizes)} for phase in plan.phases
        ],
        "programs": {
            program.name: {
                "memory_bytes": program.parts | {"together": program.total},
                "work": program.work._asdict(),
                "seconds": seconds(case, program.work, program.sent),
                "collectives": {
                    kind: {"times": count, "bytes_sent": sent}
                    for kind, (count, sent) in totals(program.collectives).items()
                },
                "compiled": program.compiled,
                "verdict": plan.verdict(program),
                "advice": plan.advice.get(program.name, []),
            }
            for program in plan.programs
        },
        "iteration": [dataclasses.asdict(stage) for stage in plan.stages],
        "notes": plan.notes,
        "fits": plan.fits,
    }
