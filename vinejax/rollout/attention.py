"""The attention of decoding: a slot reads its trunk's KV and its own suffix, merged exactly.

S slots; P resident trunks, G lanes each, a lane being a place for one slot's query; R = N / K query
heads a KV head; T trunk columns; W suffix columns. Softmax parts are (values, max, sum), float32.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

Part = tuple[jax.Array, jax.Array, jax.Array]


class Scoring(NamedTuple):
    """How a layer makes scores of products."""

    scores: Callable[[jax.Array], jax.Array]  # of q . k: scaled, and bounded where the model does
    window: int | None  # positions that a query sees, itself included; None: all before it


class Lanes(NamedTuple):
    """Which slot's query stands in which lane; a slot has one lane, on the trunk that it reads."""

    lane: jax.Array  # i32[S] P * G for a slot that has none
    slot: jax.Array  # i32[P * G] S for an empty lane
    visible: jax.Array  # i32[P * G] trunk columns that the lane's query may see
    position: jax.Array  # i32[P * G] of the lane's query


def assign_lanes(
    row: Int[Array, " S"], busy: Bool[Array, " S"], visible: Int[Array, " S"],
    position: Int[Array, " S"], rows: int, group: int,
) -> Lanes:  # fmt: skip
    """The slots that are busy, gathered by the row of the window that they read.

    At most `group` of them may be on one row.
    """
    on_row = (row[:, None] == jnp.arange(rows)) & busy[:, None]
    rank = jnp.cumsum(on_row, axis=0)[jnp.arange(row.shape[0]), row] - 1
    lane = jnp.where(busy, row * group + rank, rows * group)
    slot = jnp.full(rows * group, row.shape[0], jnp.int32)
    slot = slot.at[lane].set(jnp.arange(row.shape[0], dtype=jnp.int32), mode="drop")

    def of_lane(x: jax.Array) -> jax.Array:
        return jnp.take(x, slot, mode="fill", fill_value=0)

    return Lanes(lane, slot, of_lane(visible), of_lane(position))


def _part(scores: jax.Array, values_of: str, values: jax.Array) -> Part:
    """Unnormalised softmax over the last axis; a row that sees nothing has sum 0."""
    top = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, 0.0))
    mixed = jnp.einsum(
        values_of, weights.astype(values.dtype), values, preferred_element_type=jnp.float32
    )
    return mixed, top, weights.sum(axis=-1, keepdims=True)


def trunk_part(
    q: Float[Array, "S K R H"],
    keys: Float[Array, "P K T H"],
    values: Float[Array, "P K T H"],
    lanes: Lanes,
    scoring: Scoring,
) -> Part:
    """Attention over what each slot may see of its trunk.

    The queries of all slots on a trunk are one matrix product, so it is read once for all of them.
    Only queries move to their lanes and back: they are small, and keys and values are not.
    """
    _, K, R, H = q.shape
    P, _, T, _ = keys.shape
    rows = jnp.take(q, lanes.slot, axis=0, mode="fill", fill_value=0)
    rows = rows.reshape(P, -1, K, R, H).transpose(0, 2, 1, 3, 4).reshape(P, K, -1, H)
    products = jnp.einsum("pkqh,pkth->pkqt", rows, keys, preferred_element_type=jnp.float32)
    column, visible, position = jnp.arange(T), lanes.visible[:, None], lanes.position[:, None]
    seen = column < visible
    if scoring.window is not None:
        seen &= column > position - scoring.window
    seen = jnp.repeat(seen.reshape(P, -1, T), R, axis=1)[:, None]
    scores = jnp.where(seen, scoring.scores(products), -jnp.inf)
    part = _part(scores, "pkqt,pkth->pkqh", values)

    def slots(x: jax.Array) -> jax.Array:
        x = x.reshape(P, K, -1, R, x.shape[-1]).transpose(0, 2, 1, 3, 4)
        return x.reshape(-1, K, R, x.shape[-1])[lanes.lane]

    return slots(part[0]), slots(part[1]), slots(part[2])


def ring_part(
    q: Float[Array, "S K R H"],
    keys: list[jax.Array],  # W / b blocks of S, K, b, H in the order of `axes`
    values: list[jax.Array],
    step: Int[Array, ""],
    age: Int[Array, " S"],
    scoring: Scoring,
    axes: tuple[str, str],
) -> Part:
    """Attention over a slot's own suffix: the columns of the last `age + 1` steps.

    The ring is kept in blocks, and one in which no slot sees a column is not read at all. (A slice
    of one array would be copied before it is read; the branch of a condition reads in place.)
    """
    S, K, R, H = q.shape
    block = values[0].shape[axes[1].index("b")]
    width = block * len(keys)
    product, mixture = f"skrh,{axes[0]}->skrb", f"skrb,{axes[1]}->skrh"
    if scoring.window is not None:
        age = jnp.minimum(age, scoring.window - 1)
    oldest = jnp.max(age)
    empty = jnp.zeros((S, K, R, 1), jnp.float32)
    part = jnp.zeros((S, K, R, H), jnp.float32), empty - jnp.inf, empty
    for n, (k, v) in enumerate(zip(keys, values, strict=True)):
        column_age = (step - n * block - jnp.arange(block)) % width

        def read(part: Part, k: jax.Array, v: jax.Array, column_age: jax.Array = column_age):
            products = jnp.einsum(product, q, k, preferred_element_type=jnp.float32)
            seen = (column_age <= age[:, None])[:, None, None]
            scores = jnp.where(seen, scoring.scores(products), -jnp.inf)
            return join(part, _part(scores, mixture, v))

        if len(keys) == 1:
            return read(part, k, v)
        live = jnp.any(column_age <= oldest)
        part = lax.cond(live, read, lambda part, k, v: part, part, k, v)
    return part


def join(a: Part, b: Part) -> Part:
    """The softmax part over both parts' columns, by log-sum-exp."""
    top = jnp.maximum(a[1], b[1])
    safe = jnp.where(jnp.isfinite(top), top, 0.0)  # neither may have seen anything yet
    scale_a, scale_b = jnp.exp(a[1] - safe), jnp.exp(b[1] - safe)
    return a[0] * scale_a + b[0] * scale_b, top, a[2] * scale_a + b[2] * scale_b


def merge(a: Part, b: Part) -> jax.Array:
    """The attention over both parts' columns. One of them must have seen something."""
    mixed, _, total = join(a, b)
    return mixed / total


def write_column(
    ring: list[jax.Array], step: Int[Array, ""], x: Float[Array, "S 1 K H"], axes: str
) -> list[jax.Array]:
    """All slots' new key or value into the one column that they share, 'b' of `axes`: no scatter.

    Every block is written to, all but one with what it held: a choice between whole blocks, made
    at run time, would copy them.
    """
    axis = axes.index("b")
    block = ring[0].shape[axis]
    column = step % (block * len(ring))
    new = jnp.einsum(f"sbkh->{axes}", x).astype(ring[0].dtype)
    place = [jnp.int32(0)] * 4
    place[axis] = column % block
    written = []
    for n, old in enumerate(ring):
        mine = lax.dynamic_slice(old, place, new.shape)
        here = jnp.where(column // block == n, new, mine)
        written.append(lax.dynamic_update_slice(old, here, place))
    return written
