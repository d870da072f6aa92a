"""The attention of decoding: a slot reads its trunk's KV and its own suffix, merged exactly.

P rows of slots, each on one trunk; G slots a row; S = P * G; R = N / K query heads a KV head; T
trunk columns; W ring columns. Softmax parts are (values, max, sum), all float32.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

Part = tuple[jax.Array, jax.Array, jax.Array]


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
    visible: Int[Array, " S"],
) -> Part:
    """Attention over the first `visible` trunk columns.

    The queries of a row's G slots are one matrix product, so a trunk is read once for all of them.
    """
    S, K, R, H = q.shape
    P, _, T, _ = keys.shape
    rows = q.reshape(P, S // P, K, R, H).transpose(0, 2, 1, 3, 4).reshape(P, K, -1, H)
    scores = jnp.einsum("pkqh,pkth->pkqt", rows, keys, preferred_element_type=jnp.float32)
    seen = jnp.arange(T) < jnp.repeat(visible.reshape(P, -1), R, axis=1)[:, None, :, None]
    part = _part(jnp.where(seen, scores * H**-0.5, -jnp.inf), "pkqt,pkth->pkqh", values)

    def slots(x: jax.Array) -> jax.Array:
        return x.reshape(P, K, S // P, R, -1).transpose(0, 2, 1, 3, 4).reshape(S, K, R, -1)

    return slots(part[0]), slots(part[1]), slots(part[2])


def ring_part(
    q: Float[Array, "S K R H"],
    keys: Float[Array, "S K W H"],
    values: Float[Array, "S K W H"],
    seen: Bool[Array, "S W"],
) -> Part:
    """Attention over a slot's own suffix."""
    scores = jnp.einsum("skrh,skwh->skrw", q, keys, preferred_element_type=jnp.float32)
    scores = jnp.where(seen[:, None, None], scores * q.shape[-1] ** -0.5, -jnp.inf)
    return _part(scores, "skrw,skwh->skrh", values)


def merge(a: Part, b: Part) -> jax.Array:
    """The softmax over both parts' columns, by log-sum-exp. One of them must see something."""
    top = jnp.maximum(a[1], b[1])
    scale_a, scale_b = jnp.exp(a[1] - top), jnp.exp(b[1] - top)
    return (a[0] * scale_a + b[0] * scale_b) / (a[2] * scale_a + b[2] * scale_b)


def write_column(
    ring: Float[Array, "S K W H"], column: Int[Array, ""], x: Float[Array, "S 1 K H"]
) -> Float[Array, "S K W H"]:
    """All slots' new key or value into one shared column: one update, no scatter."""
    new = x.transpose(0, 2, 1, 3).astype(ring.dtype)
    return lax.dynamic_update_slice(ring, new, (0, 0, column, 0))
