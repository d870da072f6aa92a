"""Draws a token per sequence on a GPU: `sampling.sample` as one kernel.

A program draws for one sequence, of whose logits it processes a tile at a time. The definitions
are those of `sampling.py`; only sums have another order. Tokens are therefore equal to those of
`sampling.sample` unless a random number or a threshold lies within rounding of a sum.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from vinejax.engine.gpu.triton import Ref, load, program_id, run, store
from vinejax.engine.sampling import BITS, FORMS

TILE = 4096  # tokens per tile
WARPS = 16  # warps of a program; with fewer tokens per thread, registers spill if top-k is used
BITS_PER_PASS = FORMS["gpu"].bits
ROUNDING = 2.0**-22  # four times the relative rounding of an addition

# From the number of a tile to its scaled logits, probabilities or weights f32[TILE].
Tiles = Callable[[jax.Array], jax.Array]


def draw(
    logits: Float[Array, "B V"],
    u: Float[Array, " B"],
    temperature: float,
    top_p: float,
    top_k: int,
    interpret: bool = False,
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """The tokens and log-probabilities of `sampling.sample`, for a vocabulary on one device.

    With `interpret` the kernel runs without a GPU, slowly.
    """
    settings = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    kernel = functools.partial(_draw_one, V=logits.shape[1], **settings)
    results = [jax.ShapeDtypeStruct(u.shape, dtype) for dtype in (jnp.int32, jnp.float32)]
    token, logprob = run(kernel, u.shape, (logits, u), results, warps=WARPS, interpret=interpret)
    return token, logprob


def _draw_one(
    logits: Ref, u: Ref, token_ref: Ref, logprob_ref: Ref, *,
    V: int, temperature: float, top_p: float, top_k: int,
) -> None:  # fmt: skip
    """The kernel, which draws for the sequence whose number is the program's."""
    sequence, num_tiles, scale = program_id(0), -(-V // TILE), temperature or 1.0

    def scaled(i: jax.Array) -> jax.Array:
        place = i * TILE + jnp.arange(TILE)
        return load(logits, sequence, place, mask=place < V, other=-jnp.inf) / scale

    def add(i: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x = scaled(i)
        top = jnp.maximum(state[0], x)
        return top, state[1] * jnp.exp(state[0] - top) + jnp.exp(x - top)

    # A finite start, because -inf - -inf is not a number.
    start = jnp.full(TILE, jnp.finfo(jnp.float32).min), jnp.zeros(TILE, jnp.float32)
    tops, totals = lax.fori_loop(0, num_tiles, add, start)
    top = jnp.max(tops)
    total = jnp.sum(totals * jnp.exp(tops - top))
    log_total = jnp.log(total)
    if temperature == 0:  # the first token with the largest logit
        goal = jnp.float32(0)
        token = _inverse_cdf(lambda i: (scaled(i) == top).astype(jnp.float32), num_tiles, goal)
    else:
        mass = total * jnp.exp(-log_total)  # 1, less the rounding of log_total
        kept = _Kept(
            lambda i: jnp.exp(scaled(i) - top - log_total), num_tiles, jnp.float32(0), mass
        )
        kept = kept.most_probable(min(top_k, V)) if top_k else kept
        kept = kept.share(top_p) if top_p < 1.0 else kept
        goal = load(u, sequence) * kept.mass
        token = _inverse_cdf(lambda i: kept.weights(kept.probs(i)), num_tiles, goal)
    token = jnp.minimum(token, V - 1)
    store(token_ref, token, sequence)
    store(logprob_ref, load(logits, sequence, token) / scale - top - log_total, sequence)


class _Kept(NamedTuple):
    """The tokens of a sequence that are kept: those with at least the probability `least`."""

    probs: Tiles
    num_tiles: int
    least: Float[Array, ""]
    mass: Float[Array, ""]  # sum of the kept probabilities

    def weights(self, probs: jax.Array) -> jax.Array:
        """The probabilities of a tile, with 0 for tokens that are not kept."""
        return jnp.where(probs >= self.least, probs, 0.0)

    def most_probable(self, k: int) -> "_Kept":
        """The k most probable of all tokens, and those that tie with the last of the k."""
        # With an infinite sum the search never ends early: its bound is for weights that are the
        # probabilities themselves.
        least, _ = self._threshold(jnp.ones_like, jnp.float32(k), jnp.float32(jnp.inf))
        return self._replace(least=least, mass=self._masses(self.weights, [least])[0])

    def share(self, top_p: float) -> "_Kept":
        """The most probable of these tokens whose mass reaches `top_p` times that of all."""
        least, mass = self._threshold(self.weights, top_p * self.mass, self.mass)
        return self._replace(least=jnp.maximum(least, self.least), mass=mass)

    def _masses(self, weights: Tiles, thresholds: list[jax.Array]) -> list[jax.Array]:
        """For each threshold, the sum of the weights of tokens with at least this probability."""

        def add(i: jax.Array, sums: list[jax.Array]) -> list[jax.Array]:
            probs = self.probs(i)
            weight, pairs = weights(probs), zip(sums, thresholds, strict=True)
            return [x + jnp.where(probs >= t, weight, 0.0) for x, t in pairs]

        zeros = [jnp.zeros(TILE, jnp.float32) for _ in thresholds]
        return [jnp.sum(x) for x in lax.fori_loop(0, self.num_tiles, add, zeros)]

    def _threshold(
        self, weights: Tiles, target: jax.Array, mass: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """A threshold that keeps the tokens of `sampling.threshold`, and the sum of their weights.

        `weights` gives the weights for a tile's probabilities; their sum is at most `mass`. The
        search ends early if at most one token lies between the bounds, because the bounds then keep
        the same tokens.
        """
        error = 2 * ROUNDING * (self.num_tiles + TILE.bit_length()) * mass

        def is_open(state: tuple[jax.Array, ...]) -> jax.Array:
            num_passes, low, mass, mass_past = state
            of_two = 2 * lax.bitcast_convert_type(low, jnp.float32)  # least weight of two tokens
            return (num_passes < BITS // BITS_PER_PASS) & (mass - mass_past >= of_two - error)

        def settle(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            num_passes, low, mass, mass_past = state
            shift = BITS - BITS_PER_PASS * (num_passes + 1)
            steps = [low | (n << shift) for n in range(1, 2**BITS_PER_PASS)]
            candidates = [lax.bitcast_convert_type(step, jnp.float32) for step in steps]
            for x in self._masses(weights, candidates):  # a larger candidate has no larger mass
                low = jnp.where(x >= target, low + (1 << shift), low)
                mass = jnp.where(x >= target, x, mass)
                mass_past = jnp.where(x < target, jnp.maximum(x, mass_past), mass_past)
            return num_passes + 1, low, mass, mass_past

        start = jnp.int32(0), jnp.int32(0), mass, jnp.float32(0)
        _, low, mass, _ = lax.while_loop(is_open, settle, start)
        return lax.bitcast_convert_type(low, jnp.float32), mass


def _inverse_cdf(weights: Tiles, num_tiles: int, goal: jax.Array) -> jax.Array:
    """The token at which the cumulative weight passes `goal`, or the last one with a weight.

    A token of weight 0 is never drawn. The token may lie past the vocabulary if `goal` is NaN.
    """

    def skip(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        i, total, tile, before = state
        here = jnp.sum(weights(i))
        tile, before = jnp.where(here > 0, i, tile), jnp.where(here > 0, total, before)
        return i + 1, total + here, tile, before

    start = jnp.int32(0), jnp.float32(0), jnp.int32(0), jnp.float32(0)
    _, _, tile, before = lax.while_loop(lambda x: (x[0] < num_tiles) & (x[1] <= goal), skip, start)
    inside = weights(tile)
    # As in `sampling._first_past`: rounding can put the goal past the last weight.
    reached = jnp.where(inside > 0, jnp.cumsum(inside), 0.0)
    below = jnp.nextafter(jnp.max(reached), 0.0)
    is_past = reached > jnp.clip(goal - before, 0.0, below)
    return tile * TILE + jnp.min(jnp.where(is_past, jnp.arange(TILE), TILE - 1))
