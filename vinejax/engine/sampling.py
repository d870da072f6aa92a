"""Draws one token per sequence with temperature, top-k and top-p, without sorting.

Top-p keeps the smallest set of most probable tokens whose mass reaches p. Top-k keeps the k most
probable tokens. All tokens that tie at the threshold are kept. Both filters need the largest
probability t such that the tokens of probability t or more have enough mass. A bisection over the
bits of t finds it: non-negative floats have the same order as their bit patterns, so a search
through 30 bits is exact.

With an `axis` of the mesh each device along the axis holds an equal part of the vocabulary, in
order. The devices exchange only sums and maxima per sequence, and all get the same tokens. Letters:
B sequences, V vocabulary (on one device).
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

Tree = TypeVar("Tree")
BLOCK = 128  # tokens per block of the two-level inverse CDF
BITS = 30  # bits of a float in [0, 2) that are not always 0


class Form(NamedTuple):
    """The order in which a platform's devices read probabilities [B, V].

    The order affects only the speed; the same tokens are drawn.
    """

    bits: int  # bits of a threshold that one pass settles; a divisor of BITS
    rows: int  # sequences per tile of memory; their blocks lie together to avoid a copy
    cached: int | None = None  # number of probabilities that are processed at a time; None: all
    joined: bool = False  # whether all sums of a pass are one reduction

    def sequences(self, B: int, V: int) -> int:
        """The number of sequences that are processed at a time: B, or a power of 2 that divides B.

        Together they have at most `cached` probabilities (a field; None: no limit), unless a single
        sequence has more.
        """
        if self.cached is None or B * V <= self.cached:
            return B
        return math.gcd(B, 1 << max(self.cached // V, 1).bit_length() - 1)


PLAIN = Form(bits=1, rows=1)
# Three bits per pass take seven sums. A TPU then computes for about as long as it reads, and a GPU
# needs a third of the kernel launches. On a GPU the second level of each sum is a kernel of its own
# unless the sums are one reduction. A CPU computes the sums one after the other, so it settles
# one bit per pass. Its 30 passes read the second-level cache if they cover at most 1 MiB: 64
# sequences of 49,152 tokens then take a quarter of the time. An accelerator has no such cache, and
# is only busy if it processes all sequences at once.
FORMS = {
    "cpu": Form(bits=1, rows=1, cached=2**18),
    "gpu": Form(bits=3, rows=1, joined=True),
    "tpu": Form(bits=3, rows=8),
}


def _total(x: jax.Array, axis: str | None) -> jax.Array:
    """Each sequence's sum of x over the whole vocabulary."""
    x = jnp.sum(x, axis=-1)
    return x if axis is None else lax.psum(x, axis)


def _by_device(x: Float[Array, " B"], axis: str | None) -> Float[Array, "devices B"]:
    """The arrays x of all devices along the axis, or x alone if `axis` is None."""
    return x[None] if axis is None else lax.all_gather(x, axis)


def _from_device(x: jax.Array, device: Int[Array, " B"], axis: str | None) -> jax.Array:
    """Each sequence's value of x on device number `device` along the axis."""
    if axis is None:
        return x
    return lax.psum(jnp.where(device == lax.axis_index(axis), x, 0), axis)


def log_softmax(logits: Float[Array, "B V"], axis: str | None = None) -> Float[Array, "B V"]:
    """Log-probabilities over the whole vocabulary."""
    top = jnp.max(_by_device(lax.stop_gradient(logits.max(axis=-1)), axis), axis=0)
    shifted = logits - top[:, None]
    return shifted - jnp.log(_total(jnp.exp(shifted), axis))[:, None]


def take_token(
    x: Float[Array, "B V"], tokens: Int[Array, " B"], axis: str | None = None
) -> Float[Array, " B"]:
    """The entry of x at each sequence's token."""
    size = x.shape[-1]
    local = jnp.take_along_axis(x, (tokens % size)[:, None], axis=-1)[:, 0]
    return _from_device(local, tokens // size, axis)


def threshold(
    probs: Float[Array, "B V"],
    weights: Float[Array, "B V"],
    target: Float[Array, " B"],
    axis: str | None = None,
    bits: int = 1,
    joined: bool = False,
) -> Float[Array, " B"]:
    """The largest t such that the weights of the tokens with probs >= t sum to at least `target`.

    A pass over the vocabulary settles `bits` bits of t with one sum for each of 2**bits - 1
    candidates. `bits` must divide 30; it does not change the result. With `joined` the sums are one
    reduction. `probs` must be below 2.
    """

    def settle(i: Int[Array, ""], low: Int[Array, " B"]) -> Int[Array, " B"]:
        shift = BITS - bits * (i + 1)
        steps = [low | (n << shift) for n in range(1, 2**bits)]
        candidates = [lax.bitcast_convert_type(step, jnp.float32)[:, None] for step in steps]
        if joined:
            reached = [jnp.where(probs >= t, weights, 0.0) for t in candidates]
            zeros = [jnp.float32(0)] * len(reached)
            sums = lax.reduce(reached, zeros, lambda x, y: [*map(jnp.add, x, y)], (1,))
        else:
            sums = [jnp.sum(jnp.where(probs >= t, weights, 0.0), axis=-1) for t in candidates]
        mass = jnp.stack(sums) if axis is None else lax.psum(jnp.stack(sums), axis)
        # A larger candidate has no larger mass, so those that reach the target come first.
        return low | (jnp.sum(mass >= target, axis=0, dtype=jnp.int32) << shift)

    # The search begins at 0, which keeps every token.
    low = lax.fori_loop(0, BITS // bits, settle, jnp.zeros(probs.shape[0], jnp.int32))
    return lax.bitcast_convert_type(low, jnp.float32)


def _first_past(
    weights: Float[Array, "B n"], cumulative: Float[Array, "B n"], goal: Float[Array, " B"]
) -> Int[Array, " B"]:
    """For each sequence, the first index at which `cumulative` passes `goal`."""
    # A parallel cumulative sum is not monotone to the last bit. Over hundreds of blocks, a block of
    # weight 0 can raise it. Therefore only entries of positive weight may pass the goal.
    reached = jnp.where(weights > 0, cumulative, 0.0)
    # Rounding can put the goal past either end. The goal then belongs to the nearest weight.
    below = jnp.nextafter(reached.max(axis=-1), 0.0)
    return jnp.argmax(reached > jnp.clip(goal, 0.0, below)[:, None], axis=-1)


class _CdfSums(NamedTuple):
    """Sums of weights per device and per block, for the search of `inverse_cdf`."""

    of_devices: Float[Array, "B devices"]  # sum per device
    device_cdf: Float[Array, "B devices"]  # cumulative sum over devices
    of_blocks: Float[Array, "B n"]  # sum per block of this device
    block_cdf: Float[Array, "B n"]  # cumulative sum over the blocks of this device
    blocks: Float[Array, "tiles n rows BLOCK"]  # weights, with `rows` sequences in a tile

    def inside(self, block: Int[Array, " B"]) -> Float[Array, "B BLOCK"]:
        """For each sequence, the weights in its block number `block`."""
        rows, sequences = self.blocks.shape[2], jnp.arange(block.shape[0])
        return self.blocks[sequences // rows, block, sequences % rows]


def _cdf_sums(weights: Float[Array, "B V"], axis: str | None, form: Form) -> _CdfSums:
    B, V = weights.shape
    rows = math.gcd(form.rows, B)
    blocks = jnp.pad(weights, ((0, 0), (0, -V % BLOCK))).reshape(B // rows, rows, -1, BLOCK)
    blocks = blocks.swapaxes(1, 2)
    of_blocks = blocks.sum(axis=-1).swapaxes(1, 2).reshape(B, -1)
    block_cdf = jnp.cumsum(of_blocks, axis=-1)
    of_devices = _by_device(block_cdf[:, -1], axis).T
    return _CdfSums(of_devices, jnp.cumsum(of_devices, axis=-1), of_blocks, block_cdf, blocks)


def _before(cumulative: Float[Array, "B n"], index: Int[Array, " B"]) -> Float[Array, " B"]:
    """For each sequence, the total weight of the entries before entry `index`."""
    sequences = jnp.arange(cumulative.shape[0])
    return jnp.where(index > 0, cumulative[sequences, index - 1], 0.0)


def inverse_cdf(
    weights: Float[Array, "B V"],
    u: Float[Array, " B"],
    axis: str | None = None,
    form: Form = PLAIN,
) -> Int[Array, " B"]:
    """The token at which the cumulative weight passes u * total, for u in [0, 1).

    The search goes over devices, then over sums of blocks, then through one block. This is a third
    of the work of a full cumulative sum. A token of weight 0 is never drawn.
    """
    V = weights.shape[1]
    sums = _cdf_sums(weights, axis, form)
    goal = u * sums.device_cdf[:, -1]
    device = _first_past(sums.of_devices, sums.device_cdf, goal)
    goal = goal - _before(sums.device_cdf, device)
    block = _first_past(sums.of_blocks, sums.block_cdf, goal)
    goal = goal - _before(sums.block_cdf, block)
    inside = sums.inside(block)
    token = block * BLOCK + _first_past(inside, jnp.cumsum(inside, axis=-1), goal)
    return _from_device(token + device * V, device, axis)


class DrawIntervals(NamedTuple):
    """For each sequence, the numbers u for which `inverse_cdf` draws a given token.

    The last axis covers the stages of the search: devices, blocks, entries of a block. Each stage
    looks for the entry at which the cumulative weight passes a goal. In the first stage the goal is
    u * `total`. The stage finds the token's entry if low <= goal < high. The next stage's goal is
    smaller by `before`, the weight before this entry.
    """

    total: Float[Array, " B"]  # total weight; the first goal is u * total
    low: Float[Array, "B 3"]  # least goal
    high: Float[Array, "B 3"]  # bound of the goal, excluded
    before: Float[Array, "B 3"]  # weight before the entry


def _goals(
    weights: Float[Array, "B n"], cumulative: Float[Array, "B n"], index: Int[Array, " B"]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The fields (low, high, before), each [B], of one stage of `DrawIntervals`.

    The token's entry in this stage is at `index`.
    """
    reached = jnp.where(weights > 0, cumulative, 0.0)
    most = reached.max(axis=-1)
    is_earlier = jnp.arange(reached.shape[-1]) < index[:, None]
    low = jnp.where(is_earlier, reached, 0.0).max(axis=-1)
    own = jnp.take_along_axis(reached, index[:, None], axis=-1)[:, 0]
    # Goals past either end belong to the nearest weight. An entry that raises no sum has no goal.
    high = jnp.where(own < most, own, jnp.inf)
    high = jnp.where(low < own, high, -jnp.inf)
    return jnp.where(low > 0, low, -jnp.inf), high, _before(cumulative, index)


def draw_intervals(
    weights: Float[Array, "B V"],
    tokens: Int[Array, " B"],
    axis: str | None = None,
    form: Form = PLAIN,
) -> DrawIntervals:
    """The numbers u for which `inverse_cdf(weights, u, axis)` returns these tokens."""
    V = weights.shape[1]
    sums = _cdf_sums(weights, axis, form)
    device, block, index = tokens // V, tokens % V // BLOCK, tokens % V % BLOCK
    inside = sums.inside(block)
    of_device = _goals(sums.of_devices, sums.device_cdf, device)
    of_block = _goals(sums.of_blocks, sums.block_cdf, block)
    of_token = _goals(inside, jnp.cumsum(inside, axis=-1), index)
    of_block, of_token = jax.tree.map(lambda x: _from_device(x, device, axis), (of_block, of_token))
    fields = zip(of_device, of_block, of_token, strict=True)
    return DrawIntervals(sums.device_cdf[:, -1], *(jnp.stack(x, axis=-1) for x in fields))


def is_drawn(draws: DrawIntervals, u: Float[Array, " B"]) -> Bool[Array, " B"]:
    """Whether `inverse_cdf` with u draws the token of `draws`, for each sequence."""
    goal, is_inside = u * draws.total, jnp.ones(u.shape, bool)
    for stage in range(draws.low.shape[-1]):
        is_inside &= (draws.low[:, stage] <= goal) & (goal < draws.high[:, stage])
        goal = goal - draws.before[:, stage]
    return is_inside


def kept_probs(
    probs: Float[Array, "B V"],
    top_p: float,
    top_k: int,
    axis: str | None = None,
    form: Form = PLAIN,
) -> Float[Array, "B V"]:
    """The probabilities, with 0 for the tokens that top-k or top-p removes.

    Top-k is applied first. Top-p then refers to the tokens that top-k keeps.
    """
    kept = probs
    if top_k:
        ones = jnp.ones_like(probs)
        k = jnp.minimum(float(top_k), _total(ones, axis))
        least = threshold(probs, ones, k, axis, form.bits, form.joined)
        kept = jnp.where(probs >= least[:, None], kept, 0.0)
    if top_p < 1.0:
        target = top_p * _total(kept, axis)
        least = threshold(probs, kept, target, axis, form.bits, form.joined)
        kept = jnp.where(probs >= least[:, None], kept, 0.0)
    return kept


def by_blocks(form: Form, run: Callable[..., Tree], *arrays: Shaped[Array, "B ..."]) -> Tree:
    """Calls `run` with one block of sequences after another, and returns the joined results.

    Arrays and results have one entry per sequence. The first array is [B, V].
    """
    B, V = arrays[0].shape
    size = form.sequences(B, V)
    if size == B:
        return run(*arrays)
    blocks = [x.reshape(-1, size, *x.shape[1:]) for x in arrays]
    results = lax.map(lambda block: run(*block), blocks)
    return jax.tree.map(lambda x: x.reshape(B, *x.shape[2:]), results)


def sample(
    logits: Float[Array, "B V"],
    u: Float[Array, " B"],
    temperature: float,
    top_p: float,
    top_k: int,
    axis: str | None = None,
    form: Form = PLAIN,
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """One token per sequence, and its log-probability under the whole temperature-scaled softmax.

    `u` is each sequence's uniform random number in [0, 1). The log-probability ignores top-p and
    top-k, as in `learner/score.py`, so that both can be compared. Temperature 0 takes the most
    probable token (the first in a tie) and scores it at temperature 1.
    """

    def of_block(logits: Float[Array, "n V"], u: Float[Array, " n"]) -> tuple[jax.Array, jax.Array]:
        logprobs = log_softmax(logits / (temperature or 1.0), axis)
        if temperature == 0:
            device = jnp.argmax(_by_device(logits.max(axis=-1), axis), axis=0)
            local = jnp.argmax(logits, axis=-1)
            tokens = _from_device(local + device * logits.shape[-1], device, axis)
        else:
            kept = kept_probs(jnp.exp(logprobs), top_p, top_k, axis, form)
            tokens = inverse_cdf(kept, u, axis, form)
        return tokens, take_token(logprobs, tokens, axis)

    return by_blocks(form, of_block, logits, u)
