"""The engine's arrays: the window, the rings and the queues, and how much memory they may take."""

import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from vinejax.model.decoder import Decoder
from vinejax.rollout.decode import Queue, Slots
from vinejax.rollout.plan import Sizes
from vinejax.rollout.split import CACHE, EVERYWHERE, SHARDS, num_kv_heads, num_shards
from vinejax.rollout.window import Rows, Window

HOST_SHARE = 0.25  # of the host's memory, where a device does not tell its own
FREE_SHARE = 0.8  # of what is free on a device: programs need room too
FEW_ROWS = 8  # of the window, which is cut down to these before slots are


def one_device_mesh() -> Mesh:
    """For an engine that is given none."""
    names = ("data", "fsdp", "tensor")
    return jax.make_mesh((1, 1, 1), names, (AxisType.Auto,) * 3, devices=jax.devices()[:1])


def cache_bytes(model: Decoder, mesh: Mesh, columns: int) -> int:
    """On one device, of a slot with `columns` of the ring or a row with `columns` of the window."""
    cfg, heads = model.cfg, num_kv_heads(model, mesh) // mesh.shape["tensor"]
    item = jnp.dtype(cfg.compute_dtype).itemsize
    return 2 * cfg.num_layers * heads * columns * cfg.head_dim * item


def memory_to_use(mesh: Mesh) -> int:
    """Bytes that the window and the rings may take on each device, unless the user says so."""
    stats = mesh.local_devices[0].memory_stats() or {}
    if "bytes_limit" not in stats:
        return int(HOST_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return int(FREE_SHARE * (stats["bytes_limit"] - stats.get("bytes_in_use", 0)))


def fit(
    model: Decoder, mesh: Mesh, memory: int, slots: int, rows: int, columns: int, width: int
) -> tuple[int, int, int]:
    """(slots, rows) of those wanted that a device's `memory` holds, and the bytes they take.

    Rows are given up first, down to FEW_ROWS. Raises ValueError where not one of each fits.
    """
    row_bytes, slot_bytes = cache_bytes(model, mesh, columns), cache_bytes(model, mesh, width)
    if row_bytes + slot_bytes > memory:
        raise ValueError(
            f"memory_gib = {memory / 2**30:.3g} does not hold one trunk of {columns} tokens and "
            f"one slot of {width}: they take {(row_bytes + slot_bytes) / 2**30:.3g} GiB a device"
        )
    rows = max(min(rows, FEW_ROWS), min(rows, (memory - slots * slot_bytes) // row_bytes))
    if rows * row_bytes + slots * slot_bytes > memory:
        rows = max(1, min(rows, memory // 2 // row_bytes))
        slots = min(slots, (memory - rows * row_bytes) // slot_bytes)
    return slots, rows, rows * row_bytes + slots * slot_bytes


@functools.partial(jax.jit, static_argnames=("model", "mesh", "sizes"))
def empty(model: Decoder, mesh: Mesh, sizes: Sizes) -> tuple[Window, Rows, Slots]:
    """A window without trunks, and slots without work; every array has a buffer of its own."""
    cfg, shards = model.cfg, num_shards(mesh)

    def cache(count: int, columns: int, turned: bool = False) -> jax.Array:
        places = (cfg.head_dim, columns) if turned else (columns, cfg.head_dim)
        shape = (shards * count, num_kv_heads(model, mesh), *places)
        x = jnp.zeros(shape, cfg.compute_dtype)
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, CACHE))

    def numbers(count: int, value: int = 0) -> jax.Array:
        x = jnp.full(shards * count, value, jnp.int32)
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, SHARDS))

    def caches() -> list[jax.Array]:
        return [cache(sizes.rows, sizes.columns) for _ in range(cfg.num_layers)]

    def rings(turned: bool) -> list[list[jax.Array]]:
        block = sizes.width // sizes.blocks
        return [[cache(sizes.slots, block, turned) for _ in range(sizes.blocks)]
                for _ in range(cfg.num_layers)]  # fmt: skip

    P, S = sizes.rows, sizes.slots
    rows = Rows(numbers(P), numbers(P), numbers(P))
    slots = Slots(
        numbers(1), numbers(S, -1), numbers(S), numbers(S), numbers(S), numbers(S),
        rings(sizes.turned), rings(False),
    )  # fmt: skip
    return Window(caches(), caches()), rows, slots


def on_shards(mesh: Mesh, x: np.ndarray) -> jax.Array:
    """[D, n, ...] of D shards as [D * n, ...] on the mesh."""
    return jax.device_put(x.reshape(-1, *x.shape[2:]), NamedSharding(mesh, SHARDS))


def everywhere(mesh: Mesh, x: Any) -> jax.Array:
    return jax.device_put(x, NamedSharding(mesh, EVERYWHERE))


def queue_on_shards(mesh: Mesh, fields: dict[str, np.ndarray]) -> Queue:
    return Queue(**{name: on_shards(mesh, x) for name, x in fields.items()})
