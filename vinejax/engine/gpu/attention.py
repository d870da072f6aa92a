"""The kernel for GPU that computes the attention of a layer in a decode step.

A program of the kernel serves one slot and one KV head. It rotates the head's new queries and its
new key (RoPE), writes the new key and value to the ring, and attends to three sets of columns in
one online softmax (FlashAttention, arXiv 2205.14135): the new column, the visible columns of the
slot's row, and the visible columns of the ring. No other column is read.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from vinejax.engine.gpu import triton
from vinejax.engine.gpu.triton import Ref
from vinejax.engine.shared_attention import Part
from vinejax.model.attention import AttentionRule

TILE_BYTES = 2**14  # most bytes of keys, or of values, that a program reads at a time
MAX_TILE = 64  # most columns that a program reads at a time
MIN_LENGTH = 16  # shortest side of a matrix product


class KernelInputs(NamedTuple):
    """The arrays that the kernel reads; N is the number of query heads of a device."""

    number: jax.Array  # i32[1] number of the step
    row: jax.Array  # i32[B] row of the window
    trunk: jax.Array  # i32[B] number of the row's columns that the slot may see; 0 if idle
    age: jax.Array  # i32[B] number of tokens that the slot has sampled; 0 if idle
    heads: jax.Array  # [B, N + 2 * K, H] queries, new keys, new values, all before RoPE
    turn: jax.Array  # f32[B, 2, pairs] cosines and sines of RoPE
    trunk_keys: jax.Array  # [W, K, S, H]
    trunk_values: jax.Array  # [W, K, S, H]
    keys: jax.Array  # [B, K, width, H] ring
    values: jax.Array  # [B, K, width, H] ring


def attend(
    inputs: KernelInputs, rule: AttentionRule, interpret: bool
) -> tuple[Float[Array, "B N H"], jax.Array, jax.Array]:
    """The attention of all slots, and the ring's keys and values with the step's new column.

    The ring is changed in place if it is donated. The attention of an idle slot is undefined. With
    `interpret` the kernel runs without a GPU.
    """
    heads, ring, num_inputs = inputs.heads, inputs[-2:], len(inputs)
    slots, num_kv_heads, _, head_dim = inputs.keys.shape
    shape = (slots, heads.shape[1] - 2 * num_kv_heads, head_dim)
    mixed, keys, values = triton.run(
        functools.partial(_attend_slot, rule, tile_columns(head_dim, heads.dtype.itemsize)),
        grid=(slots, num_kv_heads),
        inputs=inputs,
        results=[
            jax.ShapeDtypeStruct(shape, heads.dtype),
            *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in ring),
        ],
        in_place={num_inputs - 2: 1, num_inputs - 1: 2},
        interpret=interpret,
    )
    return mixed, keys, values


def tile_columns(head_dim: int, item_bytes: int) -> int:
    """The number of columns that a program reads at a time."""
    return max(MIN_LENGTH, min(MAX_TILE, TILE_BYTES // (head_dim * item_bytes)))


def _attend_slot(rule: AttentionRule, tile: int, *refs: Ref) -> None:
    """The program of a slot and a KV head, with references to KernelInputs and to the results.

    The ring's inputs have the same memory as the last two results, `keys` and `values`.
    """
    inputs, (mixed, keys, values) = KernelInputs(*refs[:-3]), refs[-3:]
    slot, head = triton.program_id(0), triton.program_id(1)
    _, num_kv_heads, width, head_dim = keys.shape
    num_heads = mixed.shape[1]
    per_head = num_heads // num_kv_heads
    step, row = triton.load(inputs.number, 0), triton.load(inputs.row, slot)
    visible, own = triton.load(inputs.trunk, slot), triton.load(inputs.age, slot)
    first = 0  # first visible column of the trunk
    if rule.window is not None:
        first = jnp.maximum(visible + own + 1 - rule.window, 0)
        own = jnp.minimum(own, rule.window - 1)
    channel = jnp.arange(head_dim)
    query = jnp.arange(max(MIN_LENGTH, 2 ** math.ceil(math.log2(per_head))))  # with padding
    q = _rotated(inputs, slot, (head * per_head + jnp.minimum(query, per_head - 1))[:, None])
    k = _rotated(inputs, slot, num_heads + head)
    v = triton.load(inputs.heads, slot, num_heads + num_kv_heads + head, channel)
    triton.store(keys, k, slot, head, step % width, channel)
    triton.store(values, v, slot, head, step % width, channel)
    products = jnp.sum(q.astype(jnp.float32) * k.astype(jnp.float32), axis=1, keepdims=True)
    mix, top = jnp.broadcast_to(v.astype(jnp.float32), q.shape), rule.scores(products)

    def add(
        part: Part, cache: tuple[Ref, Ref], sequence: jax.Array, column: jax.Array, seen: jax.Array
    ) -> Part:
        """The softmax part over the columns of `part` and the `seen` columns of a sequence."""
        old_mix, old_top, old_total = part
        place = sequence, head, column[:, None], channel
        k, v = (triton.load(x, *place, mask=seen[:, None]) for x in cache)
        scores = jnp.where(seen, rule.scores(triton.product(q, k, 1)), -jnp.inf)
        top = jnp.maximum(old_top, jnp.max(scores, axis=1, keepdims=True))
        weights, scale = jnp.exp(scores - top), jnp.exp(old_top - top)
        mix = scale * old_mix + triton.product(weights.astype(v.dtype), v, 0)
        return mix, top, scale * old_total + jnp.sum(weights, axis=1, keepdims=True)

    def add_trunk(i: jax.Array, part: Part) -> Part:
        column = i * tile + jnp.arange(tile)
        seen = (column >= first) & (column < visible)
        return add(part, (inputs.trunk_keys, inputs.trunk_values), row, column, seen)

    def add_ring(i: jax.Array, part: Part) -> Part:
        back = 1 + i * tile + jnp.arange(tile)  # number of steps since the column was written
        seen = back <= own
        return add(part, (keys, values), slot, jnp.where(seen, step - back, 0) % width, seen)

    part = mix, top, jnp.ones_like(top)
    part = lax.fori_loop(first // tile, -(-visible // tile), add_trunk, part)
    mix, _, total = lax.fori_loop(0, -(-own // tile), add_ring, part)
    place, mask = (slot, head * per_head + query[:, None], channel), (query < per_head)[:, None]
    triton.store(mixed, mix / total, *place, mask=mask)


def _rotated(inputs: KernelInputs, slot: jax.Array, place: jax.Array) -> Float[Array, "*rows H"]:
    """The entries of `inputs.heads` at `slot` and `place`, after RoPE."""
    channel, pairs = jnp.arange(inputs.heads.shape[2]), inputs.turn.shape[2]
    is_first, is_rotated = channel < pairs, channel < 2 * pairs
    pair = jnp.where(is_first, channel, channel - pairs)
    partner = jnp.where(is_first, channel + pairs, jnp.where(is_rotated, pair, channel))
    cos = triton.load(inputs.turn, slot, 0, pair, mask=is_rotated, other=1)
    sin = triton.load(inputs.turn, slot, 1, pair, mask=is_rotated)
    x = triton.load(inputs.heads, slot, place, channel).astype(jnp.float32)
    y = triton.load(inputs.heads, slot, place, partner).astype(jnp.float32)
    return (x * cos + y * jnp.where(is_first, -sin, sin)).astype(inputs.heads.dtype)
