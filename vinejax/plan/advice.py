"""Which setting to change when a program has no room: computed from what takes it."""

import math

from vinejax.plan.case import Case
from vinejax.plan.memory import Phase
from vinejax.plan.roofline import STAGE, TEMPORARIES, Planned
from vinejax.rollout.arrays import cache_bytes
from vinejax.runtime.topology import KINDS

GIB = 2**30
FEWEST_SLOTS = 8  # of a shard: with fewer, a step is nearly all reading weights
LEAST = 0.02  # of the limit: what frees less is not worth a line


def advice(case: Case, phase: Phase | None, program: Planned) -> list[str]:
    """Changes that would make room for a program that has none, those that suffice first.

    Each says what it frees of a chip. A larger slice is the last. No `phase`: there are no slots.
    """
    over = program.total - case.limit
    options = _offloads(case, program) + (_own(case, phase, program) if phase else [])
    options = [(freed, text) for freed, text in options if freed > LEAST * case.limit]
    options.sort(key=lambda option: (option[0] < over, -option[0] if option[0] < over else 0))
    lines = [f"{text} frees {freed / GIB:.2f} GiB" for freed, text in options]
    return [*lines, _slice(case, program)]


def _offloads(case: Case, program: Planned) -> list[tuple[float, str]]:
    stage, parts = STAGE[program.name][0], program.parts
    options = []
    if parts.get("optimizer") and stage == "rollout":
        options.append((parts["optimizer"], "offload.optimizer = True"))
    if parts.get("reference") and stage != "score":
        options.append((parts["reference"], "offload.reference = True"))
    return options


def _own(case: Case, phase: Phase, program: Planned) -> list[tuple[float, str]]:
    """What frees the program's own memory."""
    over = program.total - case.limit
    name, parts, cfg = program.name, program.parts, case.cfg
    options = []
    if STAGE[name][0] == "rollout":
        slot = cache_bytes(case.model, case.mesh, phase.sizes.width)
        fewer = min(math.ceil(over / slot), phase.sizes.slots - FEWEST_SLOTS)
        if fewer > 0 and parts["suffix KV"]:
            slots = (phase.sizes.slots - fewer) * case.shards
            options.append(
                (
                    fewer * slot,
                    f"{_field(case, 'slots', 'rollout')} = {slots} instead of {cfg.rollout.slots}",
                )
            )
        if case.shards > 1 and case.model.cfg.num_heads % (2 * case.tensor) == 0:
            text = f"mesh.tensor = {2 * case.tensor}, with half the shards,"
            options.append((parts["decode copy"] / 2, text))
        return options
    rows = cfg.ppo.microbatch or cfg.ppo.minibatch
    if rows > case.shards:
        half = rows // 2
        text = f"{_field(case, 'microbatch', 'ppo')} = {half} instead of {rows}"
        options.append((parts[TEMPORARIES] / 2, f"{text} (at most)"))
    if cfg.model.remat != "full" and name != "score":
        kept = parts[TEMPORARIES] * 0.7
        options.append((kept, f"model.remat = 'full' instead of {cfg.model.remat!r} (about)"))
    return options


def _field(case: Case, name: str, section: str) -> str:
    """Where a setting of the run stands: in the topology's row, or in its section."""
    row = case.cfg.meshes.get(case.topology.name)
    named = row is not None and getattr(row, name) is not None
    return f"meshes[{case.topology.name!r}].{name}" if named else f"{section}.{name}"


def _slice(case: Case, program: Planned) -> str:
    """The chips that it takes if everything that is split is split further."""
    chips = math.ceil(case.topology.chips * program.total / case.limit)
    kinds = KINDS[case.topology.kind]
    sizes = sorted(math.prod(shape) for shape in kinds.shapes)
    larger = next((size for size in sizes if size >= chips), chips)
    return f"a slice of {larger} chips or more, with the new ones on fsdp (or tensor, for rollouts)"
