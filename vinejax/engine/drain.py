"""Drains, which decode the last branches of a phase with fewer slots and rows.

A decode step costs the same with idle slots as with busy ones, and the last branches of a phase end
one by one. When at most a quarter of the slots are busy, a drain moves their branches and rows to
smaller arrays, and a smaller program decodes them. A drain can be followed by a smaller drain.
Pages are not moved, nor is a window that has no more rows than the drain. Tokens stay the same, as
no draw depends on a slot.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec
from jaxtyping import Array, Bool, Int

from vinejax.engine import split
from vinejax.engine.cache import Sizes
from vinejax.engine.decode import Slots, items_left, specs_of
from vinejax.engine.layout import WINDOW
from vinejax.engine.memory import cache_bytes, phase_bytes
from vinejax.engine.split import SHARDS
from vinejax.engine.window import Window, WindowRows
from vinejax.model.decoder import Decoder
from vinejax.model.lora import kernel_shapes
from vinejax.model.sharding import ROWS, AnyMesh, on_shards

SHARE = 4  # slots of a phase / slots of its drain; also of a drain / of the next one
MIN_SLOTS = 96  # with fewer slots a drain saves less time in a run than compiling it takes
MIN_DRAINED = 32  # fewest slots with which a drain has a drain
MIN_TOKENS = 2**13  # fewest tokens for which the slots together have room, likewise
LARGE = 2**25  # number of projection weights from which small drains save time on CPUs


class PhaseArrays(NamedTuple):
    """The arrays that decoding changes, and the window that it reads."""

    window: Window
    rows: WindowRows
    slots: Slots


def drain_sizes(model: Decoder, mesh: AnyMesh, memory: int, sizes: Sizes) -> tuple[Sizes, ...]:
    """The shapes of a phase's drains, from the largest to the smallest.

    A phase of few or short slots has no drains. Whether it has them does not depend on the work of
    its branches, so that the phases of a run compile the same programs. A drain is left out if its
    arrays do not fit `memory` in addition to those of the phase. `memory` is the limit of all keys
    and values, in bytes per device.
    """
    drains: list[Sizes] = []
    slots, least, least_tokens = sizes.slots, MIN_SLOTS, MIN_TOKENS
    if steps_are_slow(model, sizes):
        least, least_tokens = MIN_DRAINED, 0
    while slots >= least and slots * sizes.width >= least_tokens:
        slots, least = slots // SHARE, MIN_DRAINED
        rows = sizes.storage.drain_rows(sizes, slots)
        drain = dataclasses.replace(
            sizes,
            slots=slots,
            rows=rows,
            lanes=min(sizes.lanes, slots),
            batch=min(sizes.batch, rows),
        )
        copied = cache_bytes(model, mesh, sizes.storage.drain_columns(sizes, drain))
        if phase_bytes(model, mesh, sizes) + copied <= memory:
            drains.append(drain)
    return tuple(drains)


def steps_are_slow(model: Decoder, sizes: Sizes) -> bool:
    """Whether a drain of few slots saves more time in a few phases than compiling it takes.

    This is so for a large model on a CPU. There each slot costs many multiplications in every step.
    """
    kernels = kernel_shapes(model).values()
    weights = model.cfg.num_layers * sum(math.prod(x + y) for x, y in kernels)
    return sizes.storage.on_cpu and weights >= LARGE


def to_drain(
    mesh: Mesh, sizes: Sizes, drain: Sizes, arrays: PhaseArrays
) -> tuple[PhaseArrays, jax.Array]:
    """The phase's arrays in the shapes of `drain`, and the former number of each slot.

    The former numbers are i32[Z, B]. Each shard may have at most `drain.slots` branches left, and
    no job may wait for a row.
    """
    window, rows, slots = arrays
    cache = slots.cache
    slots = slots._replace(cache=cache.movable())
    rows, slots, old_row, old_slot = _moved(mesh, sizes, drain, rows, slots)
    slots = slots._replace(cache=cache.with_moved(slots.cache))
    if drain.rows < sizes.rows:
        window = _rows_of(mesh, window, old_row)
    return PhaseArrays(window, rows, slots), old_slot


@functools.partial(jax.jit, static_argnames=("mesh", "sizes", "drain"))
def _moved(
    mesh: Mesh, sizes: Sizes, drain: Sizes, rows: WindowRows, slots: Slots
) -> tuple[WindowRows, Slots, jax.Array, jax.Array]:
    """The rows and slots in the shapes of the drain, and the former numbers of both.

    The former numbers count within a shard. They are i32[Z, W] for rows and i32[Z, B] for slots.
    """

    def one_shard(rows: WindowRows, slots: Slots) -> tuple[WindowRows, Slots, jax.Array, jax.Array]:
        old_slot = _chosen_first(slots.item >= 0, drain.slots)
        old_row = jnp.arange(sizes.rows, dtype=jnp.int32)
        if drain.rows < sizes.rows:
            old_row = _chosen_first(items_left(slots, rows) > 0, drain.rows)
        new_row = jnp.zeros(sizes.rows, jnp.int32).at[old_row].set(jnp.arange(drain.rows))

        slots = slots._replace(
            item=slots.item[old_slot],
            row=new_row[slots.row[old_slot]],
            age=slots.age[old_slot],
            token=slots.token[old_slot],
            match=slots.match[old_slot],
            cache=slots.cache.take(old_slot),
        )
        rows = jax.tree.map(lambda x: x[old_row], rows)
        return rows, slots, old_row[None], old_slot[None]

    numbers = Spec(ROWS, None)
    out_specs = (SHARDS, specs_of(slots, drain.slots), numbers, numbers)
    run = on_shards(mesh, one_shard, (SHARDS, specs_of(slots, sizes.slots)), out_specs)
    rows, slots, old_row, old_slot = run(rows, slots)
    return rows, slots, old_row, split.readable(mesh, old_slot)


@functools.partial(jax.jit, static_argnames="mesh")
def _rows_of(mesh: Mesh, window: Window, chosen: Int[Array, "Z W"]) -> Window:
    """A window that has only the chosen rows of each shard."""

    def one_shard(window: Window, chosen: jax.Array) -> Window:
        return jax.tree.map(lambda x: WINDOW.take(x, chosen[0]), window)

    run = on_shards(mesh, one_shard, (WINDOW.spec, Spec(ROWS, None)), WINDOW.spec)
    return run(window, chosen)


def _chosen_first(chosen: Bool[Array, " N"], count: int) -> Int[Array, " M"]:
    """The indices of `count` entries, in an order that begins with the chosen entries."""
    return jnp.argsort(~chosen, stable=True)[:count].astype(jnp.int32)
