"""Drawing one token a row: temperature, top-k, top-p, inverse CDF. No sort of the vocabulary.

Top-p keeps the smallest set of most probable tokens whose mass reaches p, top-k the k most
probable; tokens tied at the threshold are all kept. Both are the same question, 'what is the
largest probability t such that the tokens at or above t weigh enough', answered by bisection on
t's bits: non-negative floats order as their integers do, so 31 halvings find it exactly.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

BLOCK = 128  # tokens a block of the two-level inverse CDF


def threshold(
    probs: Float[Array, "S V"], weights: Float[Array, "S V"], target: Float[Array, " S"]
) -> Float[Array, " S"]:
    """Largest t such that the weights of the tokens with probs >= t sum to at least `target`."""
    bits = lax.bitcast_convert_type(probs, jnp.int32)

    def halve(i: Int[Array, ""], low: Int[Array, " S"]) -> Int[Array, " S"]:
        middle = low | (1 << (30 - i))
        mass = jnp.sum(jnp.where(bits >= middle[:, None], weights, 0.0), axis=-1)
        return jnp.where(mass >= target, middle, low)

    # The sign bit is never set; 0 keeps every token and is where the search falls back to.
    low = lax.fori_loop(0, 31, halve, jnp.zeros(probs.shape[0], jnp.int32))
    return lax.bitcast_convert_type(low, jnp.float32)


def inverse_cdf(weights: Float[Array, "S V"], u: Float[Array, " S"]) -> Int[Array, " S"]:
    """The token at which the cumulative weight passes u * total; u in [0, 1).

    Two levels, block sums and then one block: a third of the work of a full cumulative sum. A
    token of weight 0 is never drawn.
    """
    S, V = weights.shape
    blocks = jnp.pad(weights, ((0, 0), (0, -V % BLOCK))).reshape(S, -1, BLOCK)

    def first_past(
        weights: Float[Array, "S n"], cumulative: Float[Array, "S n"], goal: Float[Array, " S"]
    ) -> Int[Array, " S"]:
        # A parallel cumulative sum is not monotone to the last bit: over hundreds of blocks, one
        # of weight 0 can raise it. So only places that have weight may pass the goal.
        reached = jnp.where(weights > 0, cumulative, 0.0)
        # Rounding can put the goal past either end; it then belongs to the weight nearest to it.
        below = jnp.nextafter(reached.max(axis=-1), 0.0)
        return jnp.argmax(reached > jnp.clip(goal, 0.0, below)[:, None], axis=-1)

    sums = blocks.sum(axis=-1)
    totals = jnp.cumsum(sums, axis=-1)
    goal = u * totals[:, -1]
    block = first_past(sums, totals, goal)
    rows = jnp.arange(S)
    before = jnp.where(block > 0, totals[rows, block - 1], 0.0)
    inside = blocks[rows, block]
    return block * BLOCK + first_past(inside, jnp.cumsum(inside, axis=-1), goal - before)


def sample(
    logits: Float[Array, "S V"],
    u: Float[Array, " S"],
    temperature: float,
    top_p: float,
    top_k: int,
) -> tuple[Int[Array, " S"], Float[Array, " S"]]:
    """One token a row, and its log-probability under the whole temperature-scaled softmax.

    `u` is the row's one uniform draw. The log-probability leaves top-p and top-k out, as the
    scorer's does, so that the two can be compared. Temperature 0 is argmax, scored at 1.
    """
    logprobs = jax.nn.log_softmax(logits / (temperature or 1.0), axis=-1)
    if temperature == 0:
        tokens = jnp.argmax(logits, axis=-1)
    else:
        probs = jnp.exp(logprobs)
        kept = probs
        if top_k:
            k = jnp.full(u.shape, float(min(top_k, logits.shape[-1])))
            kept = jnp.where(probs >= threshold(probs, jnp.ones_like(probs), k)[:, None], kept, 0.0)
        if top_p < 1.0:
            goal = top_p * kept.sum(axis=-1)
            kept = jnp.where(probs >= threshold(probs, kept, goal)[:, None], kept, 0.0)
        tokens = inverse_cdf(kept, u)
    return tokens, jnp.take_along_axis(logprobs, tokens[:, None], axis=-1)[:, 0]
