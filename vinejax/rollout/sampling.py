"""Drawing one token a row: temperature, top-k, top-p, inverse CDF. No sort of the vocabulary.

Top-p keeps the smallest set of most probable tokens whose mass reaches p, top-k the k most
probable; tokens tied at the threshold are all kept. Both are the same question, 'what is the
largest probability t such that the tokens at or above t weigh enough', answered by bisection on
t's bits: non-negative floats order as their integers do, so 31 halvings find it exactly.

With an `axis` of the mesh each place of it holds an equal part of the vocabulary, in order; only
sums and maxima of rows cross it, and all places get the same tokens.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

BLOCK = 128  # tokens a block of the two-level inverse CDF


def _total(x: jax.Array, axis: str | None) -> jax.Array:
    x = jnp.sum(x, axis=-1)
    return x if axis is None else lax.psum(x, axis)


def _places(x: Float[Array, " S"], axis: str | None) -> Float[Array, "places S"]:
    """What each place of the axis has."""
    return x[None] if axis is None else lax.all_gather(x, axis)


def _from_place(x: jax.Array, place: Int[Array, " S"], axis: str | None) -> jax.Array:
    """For each row the value that one place of the axis has."""
    if axis is None:
        return x
    return lax.psum(jnp.where(place == lax.axis_index(axis), x, 0), axis)


def log_softmax(logits: Float[Array, "S V"], axis: str | None = None) -> Float[Array, "S V"]:
    top = jnp.max(_places(lax.stop_gradient(logits.max(axis=-1)), axis), axis=0)
    shifted = logits - top[:, None]
    return shifted - jnp.log(_total(jnp.exp(shifted), axis))[:, None]


def take(
    x: Float[Array, "S V"], tokens: Int[Array, " S"], axis: str | None = None
) -> Float[Array, " S"]:
    """Each row's entry at its token."""
    size = x.shape[-1]
    local = jnp.take_along_axis(x, (tokens % size)[:, None], axis=-1)[:, 0]
    return _from_place(local, tokens // size, axis)


def threshold(
    probs: Float[Array, "S V"],
    weights: Float[Array, "S V"],
    target: Float[Array, " S"],
    axis: str | None = None,
) -> Float[Array, " S"]:
    """Largest t such that the weights of the tokens with probs >= t sum to at least `target`."""
    bits = lax.bitcast_convert_type(probs, jnp.int32)

    def halve(i: Int[Array, ""], low: Int[Array, " S"]) -> Int[Array, " S"]:
        middle = low | (1 << (30 - i))
        mass = _total(jnp.where(bits >= middle[:, None], weights, 0.0), axis)
        return jnp.where(mass >= target, middle, low)

    # The sign bit is never set; 0 keeps every token and is where the search falls back to.
    low = lax.fori_loop(0, 31, halve, jnp.zeros(probs.shape[0], jnp.int32))
    return lax.bitcast_convert_type(low, jnp.float32)


def _first_past(
    weights: Float[Array, "S n"], cumulative: Float[Array, "S n"], goal: Float[Array, " S"]
) -> Int[Array, " S"]:
    # A parallel cumulative sum is not monotone to the last bit: over hundreds of blocks, one
    # of weight 0 can raise it. So only places that have weight may pass the goal.
    reached = jnp.where(weights > 0, cumulative, 0.0)
    # Rounding can put the goal past either end; it then belongs to the weight nearest to it.
    below = jnp.nextafter(reached.max(axis=-1), 0.0)
    return jnp.argmax(reached > jnp.clip(goal, 0.0, below)[:, None], axis=-1)


def inverse_cdf(
    weights: Float[Array, "S V"], u: Float[Array, " S"], axis: str | None = None
) -> Int[Array, " S"]:
    """The token at which the cumulative weight passes u * total; u in [0, 1).

    By places of the axis, block sums and then one block: a third of the work of a full cumulative
    sum. A token of weight 0 is never drawn.
    """
    S, V = weights.shape
    rows = jnp.arange(S)
    blocks = jnp.pad(weights, ((0, 0), (0, -V % BLOCK))).reshape(S, -1, BLOCK)
    sums = blocks.sum(axis=-1)
    totals = jnp.cumsum(sums, axis=-1)

    parts = _places(totals[:, -1], axis).T
    whole = jnp.cumsum(parts, axis=-1)
    goal = u * whole[:, -1]
    place = _first_past(parts, whole, goal)
    goal = goal - jnp.where(place > 0, whole[rows, place - 1], 0.0)

    block = _first_past(sums, totals, goal)
    before = jnp.where(block > 0, totals[rows, block - 1], 0.0)
    inside = blocks[rows, block]
    token = block * BLOCK + _first_past(inside, jnp.cumsum(inside, axis=-1), goal - before)
    return _from_place(token + place * V, place, axis)


def argmax(logits: Float[Array, "S V"], axis: str | None = None) -> Int[Array, " S"]:
    """The most probable token, the first of equals."""
    place = jnp.argmax(_places(logits.max(axis=-1), axis), axis=0)
    return _from_place(jnp.argmax(logits, axis=-1) + place * logits.shape[-1], place, axis)


def sample(
    logits: Float[Array, "S V"],
    u: Float[Array, " S"],
    temperature: float,
    top_p: float,
    top_k: int,
    axis: str | None = None,
) -> tuple[Int[Array, " S"], Float[Array, " S"]]:
    """One token a row, and its log-probability under the whole temperature-scaled softmax.

    `u` is the row's one uniform draw. The log-probability leaves top-p and top-k out, as the
    scorer's does, so that the two can be compared. Temperature 0 is argmax, scored at 1.
    """
    logprobs = log_softmax(logits / (temperature or 1.0), axis)
    if temperature == 0:
        tokens = argmax(logits, axis)
    else:
        probs = jnp.exp(logprobs)
        kept = probs
        if top_k:
            k = jnp.full(u.shape, float(top_k))
            everyone = jnp.ones_like(probs)
            k = jnp.minimum(k, _total(everyone, axis))
            kept = jnp.where(probs >= threshold(probs, everyone, k, axis)[:, None], kept, 0.0)
        if top_p < 1.0:
            goal = top_p * _total(kept, axis)
            kept = jnp.where(probs >= threshold(probs, kept, goal, axis)[:, None], kept, 0.0)
        tokens = inverse_cdf(kept, u, axis)
    return tokens, take(logprobs, tokens, axis)
