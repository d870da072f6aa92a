"""The kernel for GPU that computes the attention of a layer in a decode step.

A program of the kernel serves one slot and one KV head. It rotates the head's new queries and its
new key (RoPE), writes the new key and value to the ring, and attends to three sets of columns in
one online softmax (FlashAttention, arXiv 2205.14135): the new column, the visible columns of the
slot's row, and the visible columns of the ring. No other column is read. Scores and sums are
float32.

N is the number of query heads of a device.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from vinejax.engine.gpu import triton
from vinejax.engine.gpu.triton import Ref
from vinejax.model.attention import AttentionRule

TILE_BYTES = 2**14  # most bytes of keys, or of values, that a program reads at a time
MAX_TILE = 64  # most columns that a program reads at a time
MIN_LENGTH = 16  # shortest side of a matrix product


class NewColumns(NamedTuple):
    """The step's queries, keys and values before RoPE, and the factors of RoPE."""

    heads: Float[Array, "B heads H"]  # N queries, then K keys, then K values
    turn: Float[Array, "B 2 H"]  # factors of a channel, and of the other channel of its pair
    pairs: int  # channels i and i + pairs are a pair


class Visible(NamedTuple):
    """The columns that the slots see in a step."""

    number: Int[Array, " 1"]  # number of the step
    row: Int[Array, " B"]  # row of the window
    trunk: Int[Array, " B"]  # number of the row's columns that the slot may see; 0 if idle
    age: Int[Array, " B"]  # number of older columns of the ring that the slot may see


class Softmax(NamedTuple):
    """A softmax over some of the columns: the part of the kernel's loops that changes."""

    mix: jax.Array  # f32[queries, H] weighted sum of values, not normalised
    top: jax.Array  # f32[queries] largest score
    total: jax.Array  # f32[queries] sum of the weights


def attend(
    new: NewColumns,
    visible: Visible,
    trunk: tuple[Float[Array, "W K S H"], Float[Array, "W K S H"]],
    ring: tuple[Float[Array, "B K width H"], Float[Array, "B K width H"]],
    rule: AttentionRule,
    interpret: bool,
) -> tuple[Float[Array, "B N H"], jax.Array, jax.Array]:
    """The attention of all slots, and the ring's keys and values with the step's new column.

    `trunk` and `ring` have keys and values. The ring is changed in place if it is donated. The
    attention of an idle slot is undefined. With `interpret` the kernel runs without a GPU.
    """
    slots, num_kv_heads, _, head_dim = ring[0].shape
    num_heads = new.heads.shape[1] - 2 * num_kv_heads
    tile = tile_columns(head_dim, new.heads.dtype.itemsize)
    arrays = [*visible, new.heads, new.turn, *trunk, *ring]
    results = [jax.ShapeDtypeStruct((slots, num_heads, head_dim), new.heads.dtype)]
    results += [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in ring]
    mixed, keys, values = triton.run(
        functools.partial(_attend_slot, rule, new.pairs, tile),
        grid=(slots, num_kv_heads),
        inputs=arrays,
        results=results,
        in_place={len(arrays) - 2: 1, len(arrays) - 1: 2},
        interpret=interpret,
    )
    return mixed, keys, values


def tile_columns(head_dim: int, item_bytes: int) -> int:
    """The number of columns that a program reads at a time."""
    return max(MIN_LENGTH, min(MAX_TILE, TILE_BYTES // (head_dim * item_bytes)))


def _attend_slot(
    rule: AttentionRule, pairs: int, tile: int,
    number: Ref, row: Ref, trunk: Ref, age: Ref, heads: Ref, turn: Ref,
    trunk_keys: Ref, trunk_values: Ref, _keys: Ref, _values: Ref,
    mixed: Ref, keys: Ref, values: Ref,
) -> None:  # fmt: skip
    """The program of a slot and a KV head.

    The ring's inputs `_keys` and `_values` have the same memory as the results `keys` and `values`.
    """
    slot, head = triton.program_id(0), triton.program_id(1)
    _, num_kv_heads, width, head_dim = keys.shape
    num_heads = mixed.shape[1]
    per_head = num_heads // num_kv_heads
    step, visible, own = (triton.load(*x) for x in ((number, 0), (trunk, slot), (age, slot)))
    first = 0  # first visible column of the trunk
    if rule.window is not None:
        first = jnp.maximum(visible + own + 1 - rule.window, 0)
        own = jnp.minimum(own, rule.window - 1)
    channel = jnp.arange(head_dim)
    query = jnp.arange(max(MIN_LENGTH, 2 ** math.ceil(math.log2(per_head))))  # with padding
    of_query = (head * per_head + jnp.minimum(query, per_head - 1))[:, None]
    q = _rotated(heads, turn, pairs, slot, of_query)
    k = _rotated(heads, turn, pairs, slot, num_heads + head)
    v = triton.load(heads, slot, num_heads + num_kv_heads + head, channel)
    triton.store(keys, k, slot, head, step % width, channel)
    triton.store(values, v, slot, head, step % width, channel)
    score = rule.scores(jnp.sum(q.astype(jnp.float32) * k.astype(jnp.float32), axis=1))
    mix = jnp.broadcast_to(v.astype(jnp.float32), q.shape)
    softmax = Softmax(mix, score, jnp.ones_like(score))

    def add_trunk(i: jax.Array, softmax: Softmax) -> Softmax:
        column = i * tile + jnp.arange(tile)
        seen = (column >= first) & (column < visible)
        place = triton.load(row, slot), head, column[:, None], channel
        k, v = (triton.load(x, *place, mask=seen[:, None]) for x in (trunk_keys, trunk_values))
        return _with_columns(softmax, q, k, v, seen, rule)

    def add_ring(i: jax.Array, softmax: Softmax) -> Softmax:
        back = 1 + i * tile + jnp.arange(tile)  # number of steps since the column was written
        seen = back <= own
        place = slot, head, (jnp.where(seen, step - back, 0) % width)[:, None], channel
        k, v = (triton.load(x, *place, mask=seen[:, None]) for x in (keys, values))
        return _with_columns(softmax, q, k, v, seen, rule)

    softmax = lax.fori_loop(first // tile, -(-visible // tile), add_trunk, softmax)
    softmax = lax.fori_loop(0, -(-own // tile), add_ring, softmax)
    place = slot, head * per_head + query[:, None], channel
    mask = (query < per_head)[:, None]
    triton.store(mixed, softmax.mix / softmax.total[:, None], *place, mask=mask)


def _rotated(
    heads: Ref, turn: Ref, pairs: int, slot: jax.Array, place: jax.Array
) -> Float[Array, "*rows H"]:
    """The entries of `heads` at `slot` and `place`, after RoPE."""
    channel = jnp.arange(heads.shape[2])
    other = jnp.where(channel < pairs, channel + pairs, channel - pairs)
    other = jnp.where(channel < 2 * pairs, other, channel)
    x, y = (triton.load(heads, slot, place, at).astype(jnp.float32) for at in (channel, other))
    cos, sin = (triton.load(turn, slot, i, channel) for i in range(2))
    return (x * cos + y * sin).astype(heads.dtype)


def _with_columns(
    softmax: Softmax, q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array, rule: AttentionRule
) -> Softmax:
    """The softmax over the columns of `softmax` and those columns of k and v that are `seen`."""
    scores = jnp.where(seen, rule.scores(triton.product(q, k, 1)), -jnp.inf)
    top = jnp.maximum(softmax.top, jnp.max(scores, axis=1))
    weights, scale = jnp.exp(scores - top[:, None]), jnp.exp(softmax.top - top)
    mix = scale[:, None] * softmax.mix + triton.product(weights.astype(v.dtype), v, 0)
    return Softmax(mix, top, scale * softmax.total + jnp.sum(weights, axis=1))
