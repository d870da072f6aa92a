"""The engine's arrays, window and cache, and how much memory they may take."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from vinejax.core.errors import RoomError
from vinejax.core.shapes import bucket, doubled, part
from vinejax.engine.branches import Feeder
from vinejax.engine.cache import Allocator, Sizes, Storage, use_kernel
from vinejax.engine.decode import Slots
from vinejax.engine.ring import RingStorage
from vinejax.engine.slot_assignment import SHARED_BY, lanes_per_row, window_shape
from vinejax.engine.split import SHARDS, num_kv_heads
from vinejax.engine.tpu.paged import PagedStorage
from vinejax.engine.window import Window, WindowRows
from vinejax.model.decoder import Decoder
from vinejax.model.sharding import AnyMesh, num_shards
from vinejax.runtime.devices import host_memory

HOST_SHARE = 0.25  # share of the host's memory for all its devices, if they do not report theirs
FREE_SHARE = 0.8  # share of a device's free memory: programs need some, too
MIN_SLOTS = 8  # slots per shard in a phase of few branches
MIN_ROWS = 8  # if memory is short, rows are reduced to this number before slots are
MIN_CHUNK = 8  # decode steps between two polls by the host
MAX_CHUNK = 64
HOST_POLLS = 8  # while the longest branch decodes
MAX_BATCH = 8  # trunks per prefill


@dataclasses.dataclass(frozen=True)
class EngineSettings:
    """The settings of an engine that the shapes of all its phases depend on."""

    slots: int  # of all shards
    window_rows: int | None = None  # per shard; None: by slots and work
    chunk: int | None = None  # decode steps between two polls by the host; None: by the width
    attention: str = "auto"  # as in `use_kernel`
    # The most tokens of each kind of trunk, and of a budget, in all phases (`shapes.part`).
    limits: tuple[int, ...] = ()
    max_tokens: int | None = None


class PhaseSize(NamedTuple):
    """The work of a phase over all shards."""

    trunks: int
    branches: int
    longest: int  # tokens of the longest trunk
    budget: int  # the largest budget of a branch


def cache_bytes(model: Decoder, mesh: AnyMesh, columns: int) -> int:
    """Bytes per device of keys and values in this many `columns`, of slots or rows."""
    cfg, heads = model.cfg, num_kv_heads(model, mesh) // mesh.shape["tensor"]
    item_bytes = jnp.dtype(model.compute.dtype).itemsize
    return 2 * cfg.num_layers * heads * columns * cfg.head_dim * item_bytes


def phase_bytes(model: Decoder, mesh: AnyMesh, sizes: Sizes) -> int:
    """Bytes per device of window and cache."""
    of_slots = sizes.storage.columns(sizes.slots, sizes.width)
    return cache_bytes(model, mesh, sizes.rows * sizes.columns + of_slots)


def memory_to_use(mesh: Mesh) -> int:
    """Bytes that keys and values may take on each device if the user sets no limit."""
    stats = mesh.local_devices[0].memory_stats() or {}
    if "bytes_limit" not in stats:
        return int(HOST_SHARE * host_memory() / len(mesh.local_devices))
    return int(FREE_SHARE * (stats["bytes_limit"] - stats.get("bytes_in_use", 0)))


def fit_memory(
    model: Decoder, mesh: AnyMesh, memory: int, slots: int, rows: int, columns: int, width: int,
    storage: Storage,
) -> tuple[int, int]:  # fmt: skip
    """The largest numbers of slots and rows, up to those given, that fit `memory` bytes per device.

    A slot has up to `width` columns, and may wait for them. Rows are reduced first, down to
    MIN_ROWS. Raises RoomError if not even one row and one slot of `width` columns fit.
    """
    row_bytes, whole = cache_bytes(model, mesh, columns), cache_bytes(model, mesh, width)
    if row_bytes + whole > memory:
        raise RoomError(
            f"memory_gib = {memory / 2**30:.3g} does not hold one trunk of {columns} tokens and "
            f"one slot of {width}: they take {(row_bytes + whole) / 2**30:.3g} GiB per "
            f"device; raise it (in a run rollout.memory_gib), or allow fewer tokens"
        )
    slot_bytes = storage.slot_bytes(slots, width, cache_bytes(model, mesh, 1))
    rows = max(min(rows, MIN_ROWS), min(rows, (memory - slots * slot_bytes) // row_bytes))
    if rows * row_bytes + slots * slot_bytes > memory:
        rows = max(1, min(rows, memory // 2 // row_bytes, (memory - whole) // row_bytes))
        slots = min(slots, (memory - rows * row_bytes) // slot_bytes)
    return slots, rows


def storage_for(model: Decoder, platform: str, attention: str) -> Storage:
    """How slots store their keys and values; `attention` is as in `use_kernel`, which may raise."""
    if use_kernel(attention, platform, model.cfg.head_dim):
        return PagedStorage()
    return RingStorage(platform, shares_heads=model.cfg.num_heads > model.cfg.num_kv_heads)


def sizes_of(
    model: Decoder,
    mesh: AnyMesh,
    platform: str,
    memory: int,
    settings: EngineSettings,
    phase_size: PhaseSize,
    feed: Feeder | None = None,
) -> tuple[Sizes, int]:
    """The shapes of a phase, within `memory` bytes per device, and the bytes that its caches take.

    A phase of few branches has fewer slots, as idle ones would cost what busy ones do. Branches are
    assumed to be divided evenly over the shards. With a `feed` there are rows and a queue for the
    most that may be fed besides, as both are decoded at once. Raises RoomError where `fit_memory`
    does, and ConfigError where `use_kernel` does.
    """
    storage = storage_for(model, platform, settings.attention)
    shards = num_shards(mesh)
    branches = at_once = -(-phase_size.branches // shards)
    longest = phase_size.longest
    if feed is not None:
        branches, at_once = branches + -(-feed.branches // shards), -(-feed.at_once // shards)
        longest = max(longest, feed.longest)
    slots = min(-(-settings.slots // shards), doubled(at_once, least=MIN_SLOTS))
    trunks = max(-(-phase_size.trunks // shards), 1)
    wanted, lanes = window_shape(slots, trunks, -(-phase_size.branches // shards))
    if feed is not None:  # a branch has a row of its own, if it can
        rows_of_fed, lanes_of_fed = window_shape(slots, at_once, at_once)
        wanted, lanes = min(bucket(wanted + rows_of_fed), 2 * slots), max(lanes, lanes_of_fed)
    columns = storage.align(part(settings.limits, longest))
    width = part([settings.max_tokens or phase_size.budget], phase_size.budget, least=16)
    chunk = settings.chunk or min(max(width // HOST_POLLS, MIN_CHUNK), MAX_CHUNK)
    width = storage.align(width)
    slots, rows = fit_memory(
        model,
        mesh,
        memory,
        slots=slots,
        rows=settings.window_rows or wanted,
        columns=columns,
        width=width,
        storage=storage,
    )
    lanes = min(slots, max(lanes, lanes_per_row(slots, rows)))
    if feed is not None and not storage.read_by_kernel:  # XLA computes empty lanes too
        lanes = 1 if at_once <= rows else min(lanes, SHARED_BY)
    room = memory // cache_bytes(model, mesh, 1) - rows * columns
    sizes = Sizes(
        slots=slots,
        rows=rows,
        lanes=lanes,
        columns=columns,
        width=width,
        queue=queue_size(branches),
        batch=min(max(rows // 4, 1), MAX_BATCH),
        chunk=chunk,
        storage=storage.fitted(slots, width, room),
    )
    return sizes, phase_bytes(model, mesh, sizes)


def queue_size(branches: int) -> int:
    """The length of a shard's queue; `decode._offers` reads one entry after the last item."""
    return bucket(branches + 1, least=1024)


@functools.partial(jax.jit, static_argnames=("model", "mesh", "sizes"))
def empty_caches(model: Decoder, mesh: Mesh, sizes: Sizes) -> tuple[Window, WindowRows, Slots]:
    """An empty window and idle slots; every array has a buffer of its own."""
    new, storage, per_slot = Allocator(model, mesh), sizes.storage, sizes.slots
    window = Window([storage.window_layer(new, sizes) for _ in range(model.cfg.num_layers)])
    rows = WindowRows(*(new.numbers(sizes.rows) for _ in WindowRows._fields))
    slots = Slots(
        step=new.numbers(1),
        item=new.numbers(per_slot, value=-1),
        row=new.numbers(per_slot),
        age=new.numbers(per_slot),
        token=new.numbers(per_slot),
        match=new.numbers(per_slot),
        cache=storage.empty(new, sizes),
    )
    return window, rows, slots


def put_on_mesh(mesh: Mesh, spec: Spec, x: np.ndarray) -> jax.Array:
    """An array that every host holds in full, put on the mesh."""
    return jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), lambda part: x[part])


def put_on_shards(mesh: Mesh, x: np.ndarray) -> jax.Array:
    """An array [Z, n, ...] of Z shards, put on the mesh as [Z * n, ...]."""
    return put_on_mesh(mesh, SHARDS, x.reshape(-1, *x.shape[2:]))
