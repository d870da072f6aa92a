"""The engine's arrays: the window, the rings and the queues, and how much memory they may take."""

import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from vinejax.errors import RoomError
from vinejax.model.decoder import Decoder
from vinejax.model.sharding import AnyMesh, mesh_over
from vinejax.rollout.assign import Sizes, lanes, ring_axes, ring_blocks, window_shape
from vinejax.rollout.decode import Queue, Slots
from vinejax.rollout.split import EVERYWHERE, SHARDS, cache_spec, num_kv_heads, num_shards
from vinejax.rollout.window import Rows, Window
from vinejax.shapes import bucket

HOST_SHARE = 0.25  # of the host's memory, for all its devices, where they do not tell their own
FREE_SHARE = 0.8  # of what is free on a device: programs need room too
FEW_ROWS = 8  # of the window, which is cut down to these before slots are
CHUNKS = (8, 64)  # the least and the most decode steps between two looks of the host
LOOKS = 8  # of the host in the time of the longest branch
LARGEST_BATCH = 8  # trunks of one prefill


def one_device_mesh() -> Mesh:
    """For an engine that is given none."""
    return mesh_over((1, 1, 1), jax.devices()[:1])


def cache_bytes(model: Decoder, mesh: AnyMesh, columns: int) -> int:
    """On one device, of a slot with `columns` of the ring or a row with `columns` of the window."""
    cfg, heads = model.cfg, num_kv_heads(model, mesh) // mesh.shape["tensor"]
    item = jnp.dtype(model.compute.dtype).itemsize
    return 2 * cfg.num_layers * heads * columns * cfg.head_dim * item


def memory_to_use(mesh: Mesh) -> int:
    """Bytes that the window and the rings may take on each device, unless the user says so."""
    stats = mesh.local_devices[0].memory_stats() or {}
    if "bytes_limit" not in stats:
        host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return int(HOST_SHARE * host / len(mesh.local_devices))
    return int(FREE_SHARE * (stats["bytes_limit"] - stats.get("bytes_in_use", 0)))


def fit(
    model: Decoder, mesh: AnyMesh, memory: int, slots: int, rows: int, columns: int, width: int
) -> tuple[int, int, int]:
    """(slots, rows) of those wanted that a device's `memory` holds, and the bytes they take.

    Rows are given up first, down to FEW_ROWS. Raises RoomError where not one of each fits.
    """
    row_bytes, slot_bytes = cache_bytes(model, mesh, columns), cache_bytes(model, mesh, width)
    if row_bytes + slot_bytes > memory:
        raise RoomError(
            f"memory_gib = {memory / 2**30:.3g} does not hold one trunk of {columns} tokens and "
            f"one slot of {width}: they take {(row_bytes + slot_bytes) / 2**30:.3g} GiB a device; "
            f"raise it (in a run rollout.memory_gib), or allow fewer tokens"
        )
    rows = max(min(rows, FEW_ROWS), min(rows, (memory - slots * slot_bytes) // row_bytes))
    if rows * row_bytes + slots * slot_bytes > memory:
        rows = max(1, min(rows, memory // 2 // row_bytes))
        slots = min(slots, (memory - rows * row_bytes) // slot_bytes)
    return slots, rows, rows * row_bytes + slots * slot_bytes


def sizes_of(
    model: Decoder, mesh: AnyMesh, platform: str, memory: int, slots: int, *,
    num_trunks: int, num_branches: int, longest: int, budget: int,
    window_rows: int | None = None, chunk: int | None = None,
) -> tuple[Sizes, int]:  # fmt: skip
    """The shapes of a phase, within `memory` bytes a device, and the bytes that its caches take.

    `slots` are those of all shards, `longest` is the tokens of the longest trunk, `budget` the
    largest of a branch; the branches are taken to be even over the shards.
    """
    shards = num_shards(mesh)
    slots = -(-slots // shards)
    a_shard = max(-(-num_trunks // shards), 1)
    wanted, group = window_shape(slots, a_shard, -(-num_branches // shards))
    columns, width = bucket(longest, least=32), bucket(budget)
    slots, rows, taken = fit(model, mesh, memory, slots, window_rows or wanted, columns, width)
    sizes = Sizes(
        slots=slots, rows=rows, group=min(slots, max(group, lanes(slots, rows))),
        columns=columns, width=width, queue=queue_size(-(-num_branches // shards)),
        batch=min(max(rows // 4, 1), LARGEST_BATCH), blocks=ring_blocks(width, platform),
        ring=ring_axes(platform, slots, model.cfg.num_heads > model.cfg.num_kv_heads),
        chunk=chunk or min(max(width // LOOKS, CHUNKS[0]), CHUNKS[1]),
    )  # fmt: skip
    return sizes, taken


def queue_size(branches: int) -> int:
    """Places of a shard's queue; rows look one past the last branch."""
    return bucket(branches + 1, least=1024)


@functools.partial(jax.jit, static_argnames=("model", "mesh", "sizes"))
def empty(model: Decoder, mesh: Mesh, sizes: Sizes) -> tuple[Window, Rows, Slots]:
    """A window without trunks, and slots without work; every array has a buffer of its own."""
    cfg, shards = model.cfg, num_shards(mesh)

    def cache(count: int, columns: int, axes: str = "skbh") -> jax.Array:
        sizes = {"s": shards * count, "k": num_kv_heads(model, mesh), "b": columns}
        x = jnp.zeros([(sizes | {"h": cfg.head_dim})[axis] for axis in axes], model.compute.dtype)
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, cache_spec(axes)))

    def numbers(count: int, value: int = 0) -> jax.Array:
        x = jnp.full(shards * count, value, jnp.int32)
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, SHARDS))

    def caches() -> list[jax.Array]:
        return [cache(sizes.rows, sizes.columns) for _ in range(cfg.num_layers)]

    def rings(axes: str) -> list[list[jax.Array]]:
        block = sizes.width // sizes.blocks
        return [[cache(sizes.slots, block, axes) for _ in range(sizes.blocks)]
                for _ in range(cfg.num_layers)]  # fmt: skip

    P, S = sizes.rows, sizes.slots
    rows = Rows(numbers(P), numbers(P), numbers(P))
    slots = Slots(
        numbers(1), numbers(S, -1), numbers(S), numbers(S), numbers(S), numbers(S),
        *map(rings, sizes.ring),
    )  # fmt: skip
    return Window(caches(), caches()), rows, slots


def put(mesh: Mesh, spec: Any, x: np.ndarray) -> jax.Array:
    """A host array, of which every host has the whole, on the mesh."""
    return jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), lambda part: x[part])


def on_shards(mesh: Mesh, x: np.ndarray) -> jax.Array:
    """[D, n, ...] of D shards as [D * n, ...] on the mesh."""
    return put(mesh, SHARDS, x.reshape(-1, *x.shape[2:]))


def everywhere(mesh: Mesh, x: Any) -> jax.Array:
    return put(mesh, EVERYWHERE, np.asarray(x))


def queue_on_shards(mesh: Mesh, fields: dict[str, np.ndarray]) -> Queue:
    return Queue(**{name: on_shards(mesh, x) for name, x in fields.items()})
