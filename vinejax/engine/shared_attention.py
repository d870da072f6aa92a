"""Attention of decoding, which merges softmax parts over a trunk and over a slot's own tokens.

Letters of this folder: the model's letters (`model/decoder.py`) keep their meaning, with one token
per sequence. B slots, each with one sequence; S key positions, here columns; K KV heads; G query
heads per KV head; H head width; V vocabulary. Further letters: W rows of a shard's window, E lanes
per row, Q entries of a shard's queue, A states of the stop strings' automaton, Z shards.

A part of a softmax has three float32 arrays: mix of values [..., H], max [..., 1], sum [..., 1].
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vinejax.engine.layout import WINDOW, CacheLayout, SeparateKV
from vinejax.model.attention import AttentionRule

Part = tuple[jax.Array, jax.Array, jax.Array]
HeadQueries = Float[Array, "B K G H"]


class Queries(NamedTuple):
    """The row that each slot reads in a step, and the columns that it may see."""

    busy: jax.Array  # bool[B] whether the slot takes part in the step
    row: jax.Array  # i32[B] row of the window
    visible: jax.Array  # i32[B] number of trunk columns that the slot may see
    age: jax.Array  # i32[B] number of tokens that the slot has sampled; 0 if idle

    @property
    def position(self) -> jax.Array:
        """The index, i32[B], of the token that the step passes through the model.

        It counts from the beginning of the slot's whole sequence.
        """
        return self.visible + self.age


class Lanes(NamedTuple):
    """The lanes of a step, which are the places for queries on the rows of the window.

    A busy slot has one lane, on the row that the slot reads.
    """

    lane: jax.Array  # i32[B] lane of the slot; W * E if idle
    slot: jax.Array  # i32[W * E] slot of the lane; B if empty
    visible: jax.Array  # i32[W * E] number of trunk columns that the lane's query may see
    position: jax.Array  # i32[W * E] position of the lane's query


def assign_lanes(queries: Queries, rows: int, lanes: int) -> Lanes:
    """Gives each busy slot a lane of the row that the slot reads; a row has `lanes` lanes."""
    busy, row = queries.busy, queries.row
    num_slots = row.shape[0]
    on_row = (row[:, None] == jnp.arange(rows)) & busy[:, None]
    rank = jnp.cumsum(on_row, axis=0)[jnp.arange(num_slots), row] - 1
    lane = jnp.where(busy, row * lanes + rank, rows * lanes)
    slot = jnp.full(rows * lanes, num_slots, jnp.int32)
    slot = slot.at[lane].set(jnp.arange(num_slots, dtype=jnp.int32), mode="drop")

    def of_lane(x: jax.Array) -> jax.Array:
        return jnp.take(x, slot, mode="fill", fill_value=0)

    return Lanes(lane, slot, of_lane(queries.visible), of_lane(queries.position))


def softmax_part(scores: Float[Array, "B K G S"], layout: CacheLayout, values: jax.Array) -> Part:
    """The softmax part over the columns of `scores` and `values`.

    Scores are -inf where a query does not see the column; if it sees no column, the sum is 0.
    """
    top = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, 0.0))
    return layout.mix(weights, values), top, weights.sum(axis=-1, keepdims=True)


@jax.named_scope("trunk")
def trunk_part(q: HeadQueries, trunks: SeparateKV, lanes: Lanes, rule: AttentionRule) -> Part:
    """The softmax part of each slot over those columns of its trunk that the slot may see.

    The queries of all slots on a row are multiplied in one matrix product, so the row is read once.
    Only queries and results, which are small, are gathered. Keys and values stay in place.
    """
    K, G, H = q.shape[1:]
    W, _, S, _ = trunks.values.shape
    in_lanes = jnp.take(q, lanes.slot, axis=0, mode="fill", fill_value=0)
    in_lanes = in_lanes.reshape(W, -1, K, G, H).transpose(0, 2, 1, 3, 4).reshape(W, K, -1, H)
    products = trunks.layout.products(in_lanes, trunks.keys)  # [W, K, E * G, S]
    column, visible, position = jnp.arange(S), lanes.visible[:, None], lanes.position[:, None]
    seen = column < visible
    if rule.window is not None:
        seen &= column > position - rule.window
    seen = jnp.repeat(seen.reshape(W, -1, S), G, axis=1)[:, None]
    scores = jnp.where(seen, rule.scores(products), -jnp.inf)
    part = softmax_part(scores, WINDOW, trunks.values)

    def of_slots(x: jax.Array) -> jax.Array:
        x = x.reshape(W, K, -1, G, x.shape[-1]).transpose(0, 2, 1, 3, 4)
        return x.reshape(-1, K, G, x.shape[-1])[lanes.lane]

    return of_slots(part[0]), of_slots(part[1]), of_slots(part[2])


def join(a: Part, b: Part) -> Part:
    """The softmax part over the columns of a and of b, joined by log-sum-exp."""
    (mix_a, top_a, sum_a), (mix_b, top_b, sum_b) = a, b
    top = jnp.maximum(top_a, top_b)
    safe = jnp.where(jnp.isfinite(top), top, 0.0)  # a query may see no column of either part
    scale_a, scale_b = jnp.exp(top_a - safe), jnp.exp(top_b - safe)
    return mix_a * scale_a + mix_b * scale_b, top, sum_a * scale_a + sum_b * scale_b


@jax.named_scope("merge")
def merge(a: Part, b: Part) -> Float[Array, "B *heads H"]:
    """The attention over the columns of a and of b; 0 for a query that sees no column."""
    mixed, _, total = join(a, b)
    return mixed / jnp.where(total > 0, total, 1.0)
