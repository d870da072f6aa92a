"""What a plan says: memory of each program, and the least time of each and of an iteration.

The time of a program is the largest of what its operations, its bytes and its collectives take at
the chip's peaks, as if they overlapped perfectly: a bound, and what to compare changes by.
"""

import dataclasses
from typing import Any

from vinejax.plan.case import Case
from vinejax.plan.hlo import Collective
from vinejax.plan.memory import Parts, Phase, main_phase, temporaries_guess
from vinejax.plan.work import Work, analytic, calls, pass_rows

BOUNDS = ("compute", "memory", "interconnect")
TEMPORARIES = "temporaries"
# The stage that a program runs in, and the parts that its peak includes.
STAGE = {
    "decode copy": ("rollout", ("weights", "decode copy")),
    "prefill": ("rollout", ("decode copy", "trunk KV")),
    "decode": ("rollout", ("decode copy", "trunk KV", "suffix KV")),
    "score": ("score", ("weights",)),
    "train_step": ("train", ("weights", "optimizer")),
    "critic_step": ("train", ("critic",)),
}
ABSENT = {"decode copy": ("trunk KV", "suffix KV")}  # while the program runs


@dataclasses.dataclass(frozen=True)
class Planned:
    """One program; all numbers are a chip's."""

    name: str
    work: Work  # of a call; of the decode loop, of a step
    parts: dict[str, int]  # bytes while it runs, temporaries included
    compiled: dict[str, Any]  # what `compiler.compile_program` says; {} where nothing compiles

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def error(self) -> str:
        """Why it did not compile, or ''."""
        return self.compiled.get("error", "")

    @property
    def collectives(self) -> list[Collective]:
        """Of a call; of the decode loop, of a step."""
        found = [Collective(**x) for x in self.compiled.get("collectives", [])]
        return [x for x in found if x.in_loop or self.name != "decode"]

    @property
    def sent(self) -> float:
        """Bytes, by its collectives."""
        return sum(x.sent for x in self.collectives)


def planned(
    case: Case, parts: Parts, phase: Phase, name: str, work: Work, compiled: dict[str, Any]
) -> Planned:
    """The memory of a program: parts that lie there, and what its compiled form takes beside."""
    stage, included = STAGE[name]
    there = parts.of(stage, case)
    there |= dict.fromkeys(ABSENT.get(name, ()), 0)
    known = sum(there[part] for part in included)
    if "memory" in compiled:
        there[TEMPORARIES] = max(compiled["memory"]["peak"] - known, 0)
    elif "needs" in compiled:  # what the compiler wanted, arguments included
        there[TEMPORARIES] = max(int(compiled["needs"]) - known, 0)
    else:
        there[TEMPORARIES] = temporaries_guess(case, name, phase)
    return Planned(name, work, there, compiled)


def seconds(case: Case, work: Work, sent: float) -> dict[str, float]:
    """The least time for each of BOUNDS."""
    chip = case.topology.chip
    return {
        "compute": work.flops / (chip.bf16_tflops * 1e12),
        "memory": work.bytes / (chip.hbm_gb_s * 1e9),
        "interconnect": sent / (chip.link_gb_s * 1e9),
    }


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of an iteration."""

    name: str
    calls: dict[str, float]  # of each program
    seconds: float
    bound: str  # of the program that takes most of it


def iteration(case: Case, phases: list[Phase], programs: dict[str, Planned]) -> list[Stage]:
    """The stages of one iteration.

    A phase of the engine other than the one that was compiled sends as much a token as that.
    """
    compiled = main_phase(phases).sizes
    stages = []
    for phase in phases:
        counts, work = calls(case, phase), analytic(case, phase)
        size = phase.sizes.batch * phase.sizes.columns / (compiled.batch * compiled.columns)
        scale = {"prefill": size, "decode": phase.sizes.slots / compiled.slots}
        times = {
            name: seconds(case, work[name], programs[name].sent * scale[name]) for name in counts
        }
        stages.append(_stage(phase.name, counts, times))
    counts = {"decode copy": 1.0}
    stages[0] = _joined(stages[0], _stage("rollout", counts, _times(case, counts, programs)))
    ppo, episodes = case.cfg.ppo, case.cfg.rollout.prompts * case.cfg.rollout.per_prompt
    # By the policy and the reference; a critic's values take as long.
    scored = 3.0 if "critic_step" in programs else 2.0
    counts = {"score": scored * -(-episodes // pass_rows(case))}
    stages.append(_stage("score", counts, _times(case, counts, programs)))
    updates = float(ppo.epochs * -(-episodes // ppo.minibatch))
    counts = {name: updates for name in ("train_step", "critic_step") if name in programs}
    stages.append(_stage("train", counts, _times(case, counts, programs)))
    return stages


def _times(
    case: Case, counts: dict[str, float], programs: dict[str, Planned]
) -> dict[str, dict[str, float]]:
    return {name: seconds(case, programs[name].work, programs[name].sent) for name in counts}


def _stage(name: str, counts: dict[str, float], times: dict[str, dict[str, float]]) -> Stage:
    each = {program: count * max(times[program].values()) for program, count in counts.items()}
    longest = max(each, key=each.__getitem__)
    return Stage(
        name, counts, sum(each.values()), max(times[longest], key=times[longest].__getitem__)
    )


def _joined(first: Stage, more: Stage) -> Stage:
    total = first.seconds + more.seconds
    return dataclasses.replace(first, calls=more.calls | first.calls, seconds=total)
