"""Proposes changes of settings for a program whose memory does not fit on a chip."""

import math

from vinejax.runtime.topology import KINDS
from vinejax.tools.plan.case import Case
from vinejax.tools.plan.planned_memory import PlannedPhase
from vinejax.tools.plan.roofline import TEMPORARIES, PlannedProgram, stage_of

GIB = 2**30
MIN_SLOTS = 8  # minimum slots per shard; with fewer slots, a decode step mostly reads weights
MIN_SHARE = 0.02  # a change is listed only if it frees more than this share of the memory limit


def advise(case: Case, phase: PlannedPhase | None, program: PlannedProgram) -> list[str]:
    """Changes that free memory for a program that does not fit; sufficient changes come first.

    Each line names a change and the memory that it frees per chip. The last line proposes a larger
    slice. `phase` has the program's sizes; it is None if not even one slot fits.
    """
    over, parts = program.total - case.limit, program.parts
    stage, _ = stage_of(program.name)
    options = []
    if parts.get("optimizer") and stage == "rollout":
        options.append((parts["optimizer"], "offload.optimizer = True"))
    can_offload = not case.cfg.model.lora_rank  # with adapters, `offload.reference` has no effect
    if parts.get("reference") and can_offload and stage != "score":
        options.append((parts["reference"], "offload.reference = True"))
    if phase:
        options += _size_options(case, phase, program)
    options = [(freed, text) for freed, text in options if freed > MIN_SHARE * case.limit]
    options.sort(key=lambda option: (option[0] < over, -option[0] if option[0] < over else 0))
    lines = [f"{text} frees {freed / GIB:.2f} GiB" for freed, text in options]
    # The chips that suffice if the program's memory is split evenly over them.
    chips = math.ceil(case.topology.chips * program.total / case.limit)
    offered = sorted(math.prod(shape) for shape in KINDS[case.topology.kind].shapes)
    larger = next((size for size in offered if size >= chips), chips)
    where = "with the new ones on fsdp (or tensor, for rollouts)"
    return [*lines, f"a slice of {larger} chips or more, {where}"]


def _size_options(
    case: Case, phase: PlannedPhase, program: PlannedProgram
) -> list[tuple[float, str]]:
    """Pairs (bytes freed, change) for settings that determine the program's sizes."""
    name = program.name
    parts = program.parts
    cfg = case.cfg
    options = []
    if stage_of(name)[0] == "rollout":
        if parts["suffix KV"]:
            options += _cache_options(case, phase, program)
        tensor = 2 * case.tensor
        if case.shards % 2 == 0 and all(x % tensor == 0 for x in case.model.cfg.split_sizes):
            text = f"{_field_name(case, 'tensor', 'mesh')} = {tensor}, with half the shards,"
            options.append((parts["decode copy"] / 2, text))
        return options
    rows = case.pass_rows
    if rows > case.shards:
        half = rows // 2
        text = f"{_field_name(case, 'microbatch', 'ppo')} = {half} instead of {rows}"
        options.append((parts[TEMPORARIES] / 2, f"{text} (at most)"))
    if cfg.model.remat != "full" and name != "score":
        freed = parts[TEMPORARIES] * 0.7
        text = f"{_field_name(case, 'remat', 'model')} = 'full' instead of {cfg.model.remat!r}"
        options.append((freed, f"{text} (about)"))
    return options


def _cache_options(
    case: Case, phase: PlannedPhase, program: PlannedProgram
) -> list[tuple[float, str]]:
    """Pairs (bytes freed, change) for settings of the memory for keys and values."""
    sizes, parts = phase.sizes, program.parts
    over = program.total - case.limit
    if sizes.storage.columns(sizes.slots, sizes.width) < sizes.slots * sizes.width:
        # A pool with fewer pages than its slots can hold takes all memory, whatever the slots.
        held = parts["trunk KV"] + parts["suffix KV"]
        limit = math.floor((held - over) / GIB * 100) / 100
        text = f"{_field_name(case, 'memory_gib', 'rollout')} = {limit}"
        return [(over, f"{text} instead of {held / GIB:.2f}")] if limit > 0 else []
    slot = parts["suffix KV"] / sizes.slots
    fewer = min(math.ceil(over / slot), sizes.slots - MIN_SLOTS)
    text = f"{_field_name(case, 'slots', 'rollout')} = {(sizes.slots - fewer) * case.shards}"
    now = case.cfg.rollout.slots or sizes.slots * case.shards
    return [(fewer * slot, f"{text} instead of {now}")] if fewer > 0 else []


def _field_name(case: Case, name: str, section: str) -> str:
    """The dotted name of the field from which the plan takes the setting `name`.

    This is the field of the topology's row of `meshes` if that row sets it, else the field of the
    configuration's section `section`.
    """
    row = case.cfg.meshes.get(case.topology.name)
    in_row = row is not None and getattr(row, name) is not None
    return f"meshes[{case.topology.name!r}].{name}" if in_row else f"{section}.{name}"
