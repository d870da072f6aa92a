"""Chooses a row of `meshes` for a slice that has no row in the configuration.

Memory and temporaries are estimated as in `planned_memory.py`; nothing is compiled. A row decides
whether a run fits and how fast it is, but not what the run computes.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from vinejax.core.errors import ConfigError, UserError
from vinejax.core.settings import Config, MeshConfig, TopologyConfig
from vinejax.engine.memory import phase_bytes
from vinejax.runtime.devices import found_devices
from vinejax.runtime.distributed import check_hosts, is_writer
from vinejax.runtime.topology import Topology, find_topology, match_topology
from vinejax.tools.plan.case import Case, model_sizes, open_case
from vinejax.tools.plan.cost import planned_passes
from vinejax.tools.plan.planned_memory import (
    MemoryParts,
    PlannedPhase,
    decode_copy_bytes,
    fixed_parts,
    main_phase,
    planned_phases,
    temporaries_guess,
)
from vinejax.tools.plan.roofline import STAGE

FILL = 0.85  # maximum share of a chip's memory that all parts and temporaries may take
COPY_SHARE = 1 / 8  # share of a chip's memory that the decoding copy should not exceed
LANES = 128  # minimum number of columns of the model's width on a chip after splitting by `fsdp`
# Slots per shard, tried in this order until the memory suffices.
SLOTS = (512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 8)
PASS_ROWS = 1  # the time to gather all weights in a pass, in rows that a shard computes meanwhile
REMAT = ("dots", "full")  # tried in this order
ENDLESS_GIB = 2.0**20
GIB = 2**30
UNIT = GIB // 64  # a chosen `memory_gib` is a multiple of this
NO_ROW = "`meshes` has no row for {name}; this one was chosen by arithmetic alone: {row}; "
TO_CHANGE = "to change it, write it into the config; --mode=plan --config.topology={name} checks it"


def with_row_for_devices(cfg: Config) -> Config:
    """The configuration with a row of `meshes` for the devices of this process.

    If `meshes` has no such row, a row is chosen, printed and added. The configuration does not
    change if `meshes` is empty, if `mesh` is set, if `topology` names other devices, or if the
    devices are CPUs. It does not change either if the kind or number of devices is unknown; then
    `runtime.devices.on_devices` raises an error later.

    Raises ConfigError if by the estimates the run fits with no row, or if the model's sizes cannot
    be read. Raises UserError if there are no devices, or if the number of hosts is wrong
    (`check_hosts`).
    """
    if not cfg.meshes or cfg.mesh != MeshConfig():
        return cfg
    devices = found_devices()
    check_hosts()
    kind, count = devices[0].device_kind, len(devices)
    topology = find_topology(kind, count)
    if topology is None or topology.kind == "cpu" or match_topology(kind, count, cfg.meshes):
        return cfg
    if cfg.topology not in ("", topology.name):
        return cfg
    try:
        proposed = with_proposed_row(cfg, topology)
    except UserError as error:
        message = f"no row is for {topology.name}, and none could be chosen: {error}"
        raise ConfigError("meshes", message) from error
    if is_writer():
        row = row_text(proposed, topology.name)
        print((NO_ROW + TO_CHANGE).format(name=topology.name, row=row))
    return proposed


def with_proposed_row(cfg: Config, topology: Topology) -> Config:
    """The configuration with the row of `propose_row`. Raises ConfigError if no mesh fits."""
    row = propose_row(cfg, topology)
    return dataclasses.replace(cfg, meshes={**cfg.meshes, topology.name: row})


def row_text(cfg: Config, topology: str) -> str:
    """A config file's line with the row of a topology; fields that are not set are left out."""
    unset = TopologyConfig()
    fields = dataclasses.asdict(cfg.meshes[topology]).items()
    set_fields = ", ".join(f"{name}={x!r}" for name, x in fields if x != getattr(unset, name))
    return f'cfg.meshes["{topology}"] = dict({set_fields})'


def propose_row(cfg: Config, topology: Topology) -> TopologyConfig:
    """Chooses the row for a topology.

    The row is for the first mesh of `_meshes` with two properties: the run fits on it, and the
    decoding copy of the weights, which every decode step reads, takes at most COPY_SHARE of a
    chip's memory. If no mesh has both, the row is for the last mesh on which the run fits; of the
    meshes on which it fits, this mesh has the largest `tensor`.

    Raises ConfigError for the field `topology` if the run fits on no mesh. Raises UserErrors as
    `case.open_case` does if the model's sizes cannot be read.
    """
    best_row, attempts = None, []
    for mesh in _meshes(cfg, topology):
        fit = _fit(cfg, topology, mesh)
        attempts.append(fit)
        if fit.row is not None:
            best_row = fit.row
            case = _case(cfg, topology, best_row)
            if decode_copy_bytes(case) <= COPY_SHARE * case.limit:
                break
    if best_row is not None:
        return best_row
    why = "no mesh over its chips divides the model's heads and the rows of a minibatch"
    if attempts:
        smallest = min(attempts, key=lambda fit: fit.needed)
        mesh = f"fsdp={smallest.mesh.fsdp} tensor={smallest.mesh.tensor}"
        room = f"more than {FILL:.0%} of the {topology.chip.hbm_gib:.1f} of a chip"
        why = f"by arithmetic {mesh} takes {smallest.needed / GIB:.1f} GiB, {room}"
    message = f"{why}; take a larger slice, set offload.*, or add a row to `meshes`"
    raise ConfigError("topology", message, repr(topology.name))


class Fit(NamedTuple):
    """The result of the search for settings with which a run fits its chips, for a given mesh."""

    mesh: MeshConfig
    row: TopologyConfig | None  # None if the run fits with no row that was tried
    needed: int  # bytes per chip of the row or, if it is None, the fewest that could be reached


def _meshes(cfg: Config, topology: Topology) -> Iterator[MeshConfig]:
    """Yields meshes of all chips whose axes divide heads, feed-forward columns and rows of a pass.

    The meshes have increasing sizes of `tensor`, because with a larger `tensor` more chips wait for
    each other in every layer. `fsdp` is the largest size that leaves at least 128 (LANES) columns
    of the model's width on a chip. `data` takes the remaining chips.
    """
    sizes = model_sizes(cfg)
    for tensor in range(1, topology.chips + 1):
        if any(size % tensor for size in (topology.chips, *sizes.split_sizes)):
            continue
        shards = topology.chips // tensor
        if _pass_rows(cfg) % shards:
            continue
        divisors = (n for n in range(shards, 0, -1) if shards % n == 0 and sizes.width % n == 0)
        fsdp = next((n for n in divisors if sizes.width // n >= LANES), 1)
        yield MeshConfig(shards // fsdp, fsdp, tensor)


def _pass_rows(cfg: Config) -> int:
    """The maximum number of rows in a pass.

    This is the largest microbatch that divides both the minibatch of PPO and the batch of SFT.
    """
    return math.gcd(cfg.ppo.minibatch, cfg.sft.batch)


def _fit(cfg: Config, topology: Topology, mesh: MeshConfig) -> Fit:
    """The best row of `meshes` with this mesh; the result has no row if the run fits with none.

    The best row saves the most activations for the backward pass. Ties go to the row with which an
    update computes the fewest batch rows (`rows_computed`), then to the row with the most slots.
    """
    shards, rows = mesh.data * mesh.fsdp, _pass_rows(cfg)
    axes = dataclasses.asdict(mesh)
    row = TopologyConfig(**axes, slots=SLOTS[-1] * shards, microbatch=shards)
    smallest = _case(cfg, topology, row)
    memory, limit = fixed_parts(smallest), FILL * smallest.limit

    def rows_computed(microbatch: int) -> int:
        """The batch rows that all shards compute per update, plus PASS_ROWS per shard and pass.

        PASS_ROWS accounts for the time to gather the weights.
        """
        case = _case(cfg, topology, dataclasses.replace(row, microbatch=microbatch))
        return planned_passes(case, cfg.ppo.minibatch).num_used * (microbatch + PASS_ROWS * shards)

    sizes = [n for n in range(shards, rows + 1, shards) if rows % n == 0]
    needed = []
    for remat, microbatch in itertools.product(REMAT, sorted(sizes, key=rows_computed)):
        row = dataclasses.replace(row, microbatch=microbatch, remat=remat)
        needed.append(_update_bytes(_case(cfg, topology, row), memory))
        if needed[-1] <= limit:
            break
    else:
        return Fit(mesh, None, min(needed))
    for may_cut, slots in itertools.product((False, True), SLOTS):
        row = dataclasses.replace(row, slots=slots * shards)
        case = _case(cfg, topology, row)
        needed.append(_decoding_bytes(case, memory, slots, may_cut))
        if needed[-1] <= limit:
            memory_gib = _pool_gib(case, memory, limit)
            return Fit(mesh, dataclasses.replace(row, memory_gib=memory_gib), needed[-1])
    return Fit(mesh, None, needed[-1])


def _case(cfg: Config, topology: Topology, row: TopologyConfig) -> Case:
    meshes = {topology.name: row}
    return open_case(
        dataclasses.replace(cfg, mesh=MeshConfig(), meshes=meshes, topology=topology.name)
    )


def _update_bytes(case: Case, memory: MemoryParts) -> int:
    """Bytes per chip of 'score' or 'train_step', whichever program needs more."""
    phase = main_phase(planned_phases(_with_room(case, ENDLESS_GIB), 0))
    totals = []
    for name in ("score", "train_step"):
        parts = memory.during(STAGE[name][0], case)
        totals.append(sum(parts.values()) + temporaries_guess(case, name, phase))
    return max(totals)


def _decoding_bytes(case: Case, memory: MemoryParts, slots: int, may_cut: bool) -> int:
    """Bytes per chip while text is sampled with `slots` slots per shard.

    The result is `case.limit` or more, so that the settings do not fit, in two cases: memory limits
    the main phase to fewer than `slots` slots; or `may_cut` is false, and memory limits the phase's
    window to fewer rows than it would have with unlimited memory.
    """
    resident = sum(memory.during("rollout", case).values())
    try:
        phases = planned_phases(case, resident)
    except ValueError:  # not even one slot fits
        return max(resident, case.limit)
    endless = planned_phases(_with_room(case, ENDLESS_GIB), resident)
    sizes = main_phase(phases).sizes
    if sizes.slots != slots or not (may_cut or sizes.rows == main_phase(endless).sizes.rows):
        return max(resident, case.limit)
    caches = 0
    for phase in phases:
        fewest = phase.sizes.storage.smallest(phase.sizes)  # the smallest pool of pages
        smallest = dataclasses.replace(phase.sizes, storage=fewest)
        caches = max(caches, phase_bytes(case.model, case.mesh, smallest))
    return resident + math.ceil(caches / UNIT) * UNIT + _spare(case, phases)


def _spare(case: Case, phases: list[PlannedPhase]) -> int:
    """Bytes per chip of temporaries of prefill or decoding, whichever program has more."""
    phase = main_phase(phases)
    return max(temporaries_guess(case, name, phase) for name in ("prefill", "decode"))


def _pool_gib(case: Case, memory: MemoryParts, limit: float) -> float | None:
    """The `memory_gib` with which a chip uses at most `limit` bytes; None if it is not needed.

    The setting is needed if, without it, keys and values would take so much memory that the chip
    uses more than `limit` bytes.
    """
    resident = sum(memory.during("rollout", case).values())
    phases = planned_phases(case, resident)
    caches = max(phase_bytes(case.model, case.mesh, phase.sizes) for phase in phases)
    room = limit - resident - _spare(case, phases)
    return None if caches <= room else int(room // UNIT) * UNIT / GIB


def _with_room(case: Case, memory_gib: float) -> Case:
    """The case with the setting `rollout.memory_gib`, the memory for keys and values."""
    rollout = dataclasses.replace(case.cfg.rollout, memory_gib=memory_gib)
    return dataclasses.replace(case, cfg=dataclasses.replace(case.cfg, rollout=rollout))
