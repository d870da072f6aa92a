"""Chooses a phase's shapes within a limit of memory, and allocates the window and the slots."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from vinejax.core.errors import RoomError
from vinejax.core.shapes import bucket, doubled, padded_length
from vinejax.engine.branches import Feeder
from vinejax.engine.cache import Allocator, Sizes, Storage, use_kernel
from vinejax.engine.decode import Slots
from vinejax.engine.gpu.kernel_ring import KernelRingStorage
from vinejax.engine.ring import RingStorage
from vinejax.engine.row_jobs import SHARED_BY, lanes_per_row, window_shape
from vinejax.engine.split import SHARDS, num_kv_heads
from vinejax.engine.tpu.paged import PagedStorage
from vinejax.engine.unpadded_prefill import MIN_TRUNKS
from vinejax.engine.window import Window, WindowRows
from vinejax.model.decoder import Decoder
from vinejax.model.sharding import AnyMesh, num_shards
from vinejax.runtime import distributed
from vinejax.runtime.devices import host_memory

HOST_SHARE = 0.25  # share of the host's memory, if its devices do not report their memory
FREE_SHARE = 0.8  # share of a device's free memory; programs need the rest
MIN_SLOTS = 8  # slots per shard in a phase of few branches
MIN_ROWS = 8  # number to which rows are reduced before slots, if memory is short
MIN_CHUNK = 8  # fewest decode steps between two polls by the host
GPU_MIN_CHUNK = 32  # the same on GPUs, where the start of a chunk updates a graph of its kernels
MAX_CHUNK = 64  # most decode steps between two polls by the host
HOST_POLLS = 8  # polls by the host while the longest branch is decoded
MAX_BATCH = 8  # trunks per prefill
GPU_MAX_BATCH = 64  # the same on GPUs, where the launches of a prefill take over a millisecond
GPU_PREFILL_TOKENS = 2**14  # most tokens of a prefill of more than MAX_BATCH trunks
MIN_QUEUE = 4096  # entries of a queue; 28 bytes each
SLOTS = 256  # slots over all shards, if the user sets no number
GPU_SLOTS = 1024  # slots per shard on GPUs, at most, if the user sets no number
SLOT_SHARE = 2 / 3  # share of the memory of keys and values that GPU_SLOTS slots may take


@dataclasses.dataclass(frozen=True)
class EngineSettings:
    """The settings of an engine on which the shapes of all its phases depend."""

    slots: int  # number over all shards
    window_rows: int | None = None  # number per shard; None: chosen by slots and branches
    chunk: int | None = None  # decode steps between two polls by the host; None: set by the width
    attention: str = "auto"  # the `name` for `use_kernel`
    # Most tokens of each kind of trunk in all phases, for `shapes.padded_length`.
    limits: tuple[int, ...] = ()
    max_tokens: int | None = None  # largest budget in all phases; None: that of the phase


class Workload(NamedTuple):
    """The work of a phase: the numbers and largest lengths of its trunks and branches.

    The numbers are those of all shards together.
    """

    trunks: int
    branches: int
    longest: int  # tokens of the longest trunk
    budget: int  # largest budget of a branch


def cache_bytes(model: Decoder, mesh: AnyMesh, columns: int) -> int:
    """The bytes per device of `columns` columns, with keys and values of all layers."""
    cfg, heads = model.cfg, num_kv_heads(model, mesh) // mesh.shape["tensor"]
    item_bytes = jnp.dtype(model.compute.dtype).itemsize
    return 2 * cfg.num_layers * heads * columns * cfg.head_dim * item_bytes


def phase_bytes(model: Decoder, mesh: AnyMesh, sizes: Sizes) -> int:
    """The bytes per device that a phase's window and cache take."""
    of_slots = sizes.storage.columns(sizes.slots, sizes.width)
    return cache_bytes(model, mesh, sizes.rows * sizes.columns + of_slots)


def memory_to_use(mesh: Mesh, reserved: int = 0) -> int:
    """The most bytes of keys and values per device if the user sets no limit.

    `reserved` bytes of the free memory are kept for other arrays. Hosts may have different amounts
    of free memory, but must choose the same shapes. The result is the least of all hosts, which
    must all make the call.
    """
    stats = mesh.local_devices[0].memory_stats() or {}
    if "bytes_limit" in stats:
        free = stats["bytes_limit"] - stats.get("bytes_in_use", 0) - reserved
        own = int(FREE_SHARE * max(free, 0))
    else:
        own = int(HOST_SHARE * host_memory() / len(mesh.local_devices))
    return min(distributed.exchange(own))


def slots_for(model: Decoder, mesh: AnyMesh, platform: str, memory: int, budget: int) -> int:
    """The number of slots over all shards, if the user sets none.

    A decode step of a GPU takes little longer with more slots. There each shard has 1,024 slots, or
    as many halves of that number as it takes until slots of `budget` tokens take at most SLOT_SHARE
    of `memory`, in bytes per device.
    """
    if platform != "gpu":
        return SLOTS
    slots, slot_bytes = (
        GPU_SLOTS,
        cache_bytes(model, mesh, padded_length([budget], budget, least=16)),
    )
    while slots > MIN_SLOTS and slots * slot_bytes > SLOT_SHARE * memory:
        slots //= 2
    return slots * num_shards(mesh)


def fit_memory(
    model: Decoder, mesh: AnyMesh, memory: int, slots: int, rows: int, columns: int, width: int,
    storage: Storage,
) -> tuple[int, int]:  # fmt: skip
    """The numbers of slots and rows, reduced to fit `memory` bytes per device.

    A slot has up to `width` columns. With a paged `storage` a slot may have to wait for pages. Rows
    are reduced first. Slots are reduced, too, if MIN_ROWS rows do not fit beside all slots. Raises
    RoomError if one row and one slot of `width` columns do not fit.
    """
    row_bytes, whole = cache_bytes(model, mesh, columns), cache_bytes(model, mesh, width)
    if row_bytes + whole > memory:
        raise RoomError(
            f"memory_gib = {memory / 2**30:.3g} does not hold one trunk of {columns} tokens and "
            f"one slot of {width}, which take {(row_bytes + whole) / 2**30:.3g} GiB per device; "
            f"raise memory_gib (rollout.memory_gib in a run), or allow fewer tokens"
        )
    slot_bytes = storage.slot_bytes(slots, width, cache_bytes(model, mesh, 1))
    rows = max(min(rows, MIN_ROWS), min(rows, (memory - slots * slot_bytes) // row_bytes))
    if rows * row_bytes + slots * slot_bytes > memory:
        rows = max(1, min(rows, memory // 2 // row_bytes, (memory - whole) // row_bytes))
        slots = min(slots, (memory - rows * row_bytes) // slot_bytes)
    return slots, rows


def storage_for(model: Decoder, platform: str, attention: str) -> Storage:
    """The storage of the slots' keys and values; `attention` is the `name` for `use_kernel`.

    Raises the ConfigError of `use_kernel`.
    """
    shares_heads = model.cfg.num_heads > model.cfg.num_kv_heads
    if not use_kernel(attention, platform, model.cfg.head_dim):
        return RingStorage(platform, shares_heads)
    return KernelRingStorage(platform, shares_heads) if platform == "gpu" else PagedStorage()


def sizes_of(
    model: Decoder,
    mesh: AnyMesh,
    platform: str,
    memory: int,
    settings: EngineSettings,
    workload: Workload,
    feed: Feeder | None = None,
) -> tuple[Sizes, int]:
    """The shapes of a phase within `memory` bytes per device, and the bytes of its caches.

    A phase of few branches has fewer slots, as idle slots cost as much as busy ones. Branches are
    assumed to be divided evenly over the shards. With a `feed` the queue also has room for all
    branches of the feed, and the window for the most branches that the feed returns at once.
    Raises the RoomError of `fit_memory` and the ConfigError of `use_kernel`.
    """
    storage = storage_for(model, platform, settings.attention)
    shards = num_shards(mesh)
    branches = at_once = -(-workload.branches // shards)
    longest = workload.longest
    if feed is not None:
        branches, at_once = branches + -(-feed.branches // shards), -(-feed.at_once // shards)
        longest = max(longest, feed.longest)
    slots = min(-(-settings.slots // shards), doubled(at_once, least=MIN_SLOTS))
    trunks = max(-(-workload.trunks // shards), 1)
    rows, lanes = window_shape(slots, trunks, -(-workload.branches // shards))
    if feed is not None:  # a row for each branch, if there is room
        rows_of_feed, lanes_of_feed = window_shape(slots, at_once, at_once)
        rows, lanes = min(bucket(rows + rows_of_feed), 2 * slots), max(lanes, lanes_of_feed)
    columns = storage.align(padded_length(settings.limits, longest))
    width = padded_length([settings.max_tokens or workload.budget], workload.budget, least=16)
    min_chunk = GPU_MIN_CHUNK if platform == "gpu" else MIN_CHUNK
    chunk = settings.chunk or min(max(width // HOST_POLLS, min_chunk), MAX_CHUNK)
    width = storage.align(width)
    slots, rows = fit_memory(
        model,
        mesh,
        memory,
        slots=slots,
        rows=settings.window_rows or rows,
        columns=columns,
        width=width,
        storage=storage,
    )
    lanes = min(slots, max(lanes, lanes_per_row(slots, rows)))
    if feed is not None and not storage.read_by_kernel:  # XLA computes empty lanes, too
        lanes = 1 if at_once <= rows else min(lanes, SHARED_BY)
    room = memory // cache_bytes(model, mesh, 1) - rows * columns
    sizes = Sizes(
        slots=slots,
        rows=rows,
        lanes=lanes,
        columns=columns,
        width=width,
        queue=queue_size(branches),
        batch=prefill_batch(platform, slots, rows, columns, is_fed=feed is not None),
        chunk=chunk,
        storage=storage.fitted(slots, width, room),
    )
    return sizes, phase_bytes(model, mesh, sizes)


def prefill_batch(platform: str, slots: int, rows: int, columns: int, is_fed: bool) -> int:
    """The trunks per prefill, for `rows` rows of `columns` columns.

    A prefill waits for as many free rows. These are a quarter of all rows, so that the others keep
    the slots busy. On CPUs they are up to half of all rows, if a slot has two rows, and if the
    batch then has no padding (`unpadded_prefill.py`). With a feed few trunks enter at a time, so
    that a batch of a GPU is no larger than that of other platforms.
    """
    most, share = MAX_BATCH, rows // 4
    if platform == "gpu" and not is_fed:
        most = max(MAX_BATCH, min(GPU_PREFILL_TOKENS // columns, GPU_MAX_BATCH))
    if platform == "cpu" and rows // 2 >= max(MIN_TRUNKS, slots):
        share = max(share, MIN_TRUNKS)
    return min(max(share, 1), most)


def queue_size(branches: int) -> int:
    """The length of a shard's queue for this many branches.

    There are few such lengths, because the number of branches varies over a run, and every program
    that reads the queue is compiled for its length. There is room for an entry after the last item,
    because `decode._offers` reads this entry.
    """
    return doubled(branches + 1, least=MIN_QUEUE)


@functools.partial(jax.jit, static_argnames=("model", "mesh", "sizes"))
def empty_caches(model: Decoder, mesh: Mesh, sizes: Sizes) -> tuple[Window, WindowRows, Slots]:
    """An empty window, its rows without items, and idle slots. Each array has its own buffer."""
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
    """Puts an array on the mesh. Every host must have the whole array."""
    return jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), lambda part: x[part])


def put_on_shards(mesh: Mesh, x: np.ndarray) -> jax.Array:
    """Puts an array [Z, n, ...] of Z shards on the mesh as [Z * n, ...]."""
    return put_on_mesh(mesh, SHARDS, x.reshape(-1, *x.shape[2:]))
