"""Log-probabilities and entropies from hidden states, with the logits of a few columns at a time.

The logits of a token with hidden state x are z_v = cap(x·W_v) / τ for v in the vocabulary, with
cap(r) = c tanh(r / c), or r for a model without soft-capping. The results are

    log p_y = z_y - L    H = -Σ_v p_v log p_v    with L = log Σ_v exp z_v  and  p_v = exp(z_v - L).

All logits of a batch [B, T, V] in float32 would be the largest array of a training step: 10 GB for
16,384 tokens and a vocabulary of 152,000. So the vocabulary is divided into chunks of columns of W,
and only the logits of one chunk exist at a time.

The forward pass keeps four numbers per token over the columns so far, and joins them with the
numbers of the next chunk:

    m = max_v z_v    s = Σ_v exp(z_v - m)    a = Σ_v exp(z_v - m) (z_v - m)    z_y
    log p_y = z_y - m - log s    H = log s - a / s

The backward pass computes the logits of a chunk again. With g and h the gradients for log p_y and
H,

    ∂z_v = g (1[v = y] - p_v) - h p_v (log p_v + H)        ∂r_v = ∂z_v cap'(r_v) / τ
    ∂x = Σ_v ∂r_v W_v                                      ∂W_v = Σ_tokens ∂r_v x

A position may also have *labels*. These are further tokens u whose log-probabilities log p_u are
results, too, and their logits are read from the same chunks. With g_u the gradient for log p_u, and
u = y among them, the first equation becomes

    ∂z_v = Σ_u g_u (1[v = u] - p_v) - h p_v (log p_v + H).

Each chunk computes its own part of ∂W, while ∂x is a float32 sum over chunks. With chunks of
tokens, ∂W would be the sum. In most updates ∂W is larger than ∂x, because a device has fewer tokens
than columns. Matrix products have operands in the dtype of x and W, and accumulate in float32. All
other arithmetic is in float32.

`token_logprobs.py` calls `chunked_softmax` (the forward pass) and `chunked_gradient` (the backward
pass) on every device of a mesh. Where the mesh axis `tensor` splits the columns, the four numbers
of its devices are joined like those of chunks.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from vinejax.model.attention import softcap

Carry = TypeVar("Carry")
Column = jax.Array | int

FLOAT32 = 4
CHUNK_BYTES = 64 * 2**20  # maximum size of a chunk's float32 logits, on each device
# Minimum number of columns in a chunk, for any number of tokens. With fewer columns, reading and
# writing the operands would take longer than the products.
MIN_COLUMNS = 512
LANES = 128  # columns of a TPU's registers; a chunk has a multiple of them


@dataclasses.dataclass(frozen=True)
class OutputLayer:
    """How to compute logits from hidden states.

    It is hashable, so that it can be a static argument of compiled programs.
    """

    name: str  # name of the output matrix: 'head' [D, V], or 'embed' [V, D] for a tied head
    softcap: float | None
    temperature: float  # above 0
    chunk: int | None = None  # number of columns in a chunk; None: see `chunk_columns`

    @property
    def letters(self) -> str:
        """The letters that stand for the axes of the output matrix in an einsum."""
        return "vd" if self.name == "embed" else "dv"

    @property
    def vocab_axis(self) -> int:
        """The index of the vocabulary axis of the output matrix."""
        return self.letters.index("v")

    def logits(self, products: Float[Array, "T v"]) -> Float[Array, "T v"]:
        """The logits z of the products r = x·W."""
        return softcap(products, self.softcap) / self.temperature

    def slope(self, logits: Float[Array, " L"]) -> Float[Array, " L"]:
        """∂z/∂r for logits z, in which cap' is 1 - tanh²(r / c) and tanh(r / c) is z·τ / c."""
        if self.softcap is None:
            return jnp.full_like(logits, 1 / self.temperature)
        return (1 - (logits * self.temperature / self.softcap) ** 2) / self.temperature


def chunk_columns(tokens: int, vocab: int) -> int:
    """The number of columns in a chunk, for `tokens` tokens and `vocab` columns on a device.

    A chunk has at most CHUNK_BYTES of logits, or MIN_COLUMNS columns if that is more. All chunks
    have similar sizes.
    """
    limit = max(CHUNK_BYTES // (FLOAT32 * tokens), MIN_COLUMNS) // LANES * LANES
    if vocab <= limit:
        return vocab
    mean = -(-vocab // -(-vocab // limit))
    return -(-mean // LANES) * LANES


class LabelTokens(NamedTuple):
    """Labels: further tokens at positions, beside the positions' own tokens.

    No position may have a label twice, or its own token as a label.
    """

    place: Int[Array, "..."]  # index of the position among the tokens; -1: no label
    token: Int[Array, "..."]


class Softmax(NamedTuple):
    """The results of the forward pass for each token."""

    logprob: Float[Array, " T"]  # log p_y
    entropy: Float[Array, " T"]  # H
    normaliser: Float[Array, " T"]  # L
    of_labels: Float[Array, " L"] | None = None  # log p of each label; 0 where its place is -1


def chunked_softmax(
    x: Float[Array, "T D"],
    table: Float[Array, "..."],
    tokens: Int[Array, " T"],
    output: OutputLayer,
    axis: str | None = None,
    labels: LabelTokens | None = None,
) -> Softmax:
    """log p_y, H and L of the module's equations for each token, where y are the `tokens`.

    Args:
      x: hidden states after the final norm, in the dtype of the products.
      table: the output matrix in the same dtype, with the axes that `output` names. On a mesh, it
        is the device's part of the columns.
      tokens: int32, ids in the whole vocabulary.
      output: how to compute logits.
      axis: the mesh axis that splits the columns; None: the table has all columns.
      labels: further tokens whose log-probabilities are computed; None: there are none.
    """
    vocab = table.shape[output.vocab_axis]
    tokens = _local_columns(tokens, vocab, axis)
    if labels is not None:
        labels = labels._replace(token=_local_columns(labels.token, vocab, axis))

    def step(first: Column, size: int, sums: _ColumnSums) -> _ColumnSums:
        z = output.logits(_products(x, _columns_of(table, first, size, output), output))
        top = z.max(axis=-1)
        shifted = z - top[:, None]
        weights = jnp.exp(shifted)
        part = _ColumnSums(
            top=top,
            total=weights.sum(axis=-1),
            weighted=(weights * shifted).sum(axis=-1),
            token_logit=jnp.where(_is_token_column(tokens, first, size), z, 0.0).sum(axis=-1),
            label_logit=None if labels is None else _at_labels(z, labels, first),
        )
        return _join(sums, part)

    zeros = jnp.zeros(tokens.shape, jnp.float32)
    # The first maximum is finite, because the difference of two infinite maxima would be NaN.
    nothing = _ColumnSums(zeros + jnp.finfo(jnp.float32).min, zeros, zeros, zeros)
    if labels is not None:
        nothing = nothing._replace(label_logit=jnp.zeros(labels.place.shape, jnp.float32))
    sums = _over_chunks(vocab, _chunk(tokens, vocab, output), step, nothing)
    if axis is not None:  # the columns of all devices along it
        top = lax.pmax(sums.top, axis)
        sums = lax.psum(sums.relative_to(top), axis)._replace(top=top)
    log_total = jnp.log(sums.total)
    normaliser = sums.top + log_total
    entropy = log_total - sums.weighted / sums.total
    of_labels = None
    if labels is not None and sums.label_logit is not None:
        of_labels = jnp.where(labels.place < 0, 0.0, sums.label_logit - normaliser[labels.place])
    return Softmax(sums.token_logit - normaliser, entropy, normaliser, of_labels)


class SavedArrays(NamedTuple):
    """The arrays that the forward pass saves for the backward pass. Logits are not among them."""

    x: Float[Array, "T D"]
    table: Float[Array, "..."]
    tokens: Int[Array, " T"]
    entropy: Float[Array, " T"]
    normaliser: Float[Array, " T"]
    labels: LabelTokens | None = None
    of_labels: Float[Array, " L"] | None = None  # log-probabilities of the labels


def chunked_gradient(
    saved: SavedArrays,
    by_logprob: Float[Array, " T"],
    by_entropy: Float[Array, " T"],
    output: OutputLayer,
    axis: str | None = None,
    by_labels: Float[Array, " L"] | None = None,
) -> tuple[Float[Array, "T D"], Float[Array, "..."]]:
    """∂x and ∂W in the dtypes of x and W, by the module's equations.

    Args:
      saved: arguments and results of `chunked_softmax`.
      by_logprob: float32, the gradient g for the log-probabilities.
      by_entropy: float32, the gradient h for the entropies.
      output: as for `chunked_softmax`.
      axis: as for `chunked_softmax`. If not None, ∂x is a sum over the columns of the device only.
      by_labels: float32, the gradient for the log-probabilities of the labels, if there are any.
    """
    x, table, labels = saved.x, saved.table, saved.labels
    vocab = table.shape[output.vocab_axis]
    tokens = _local_columns(saved.tokens, vocab, axis)
    entropy, normaliser = saved.entropy[:, None], saved.normaliser[:, None]
    g, h, g_sum, by_label = by_logprob[:, None], by_entropy[:, None], by_logprob[:, None], None
    if labels is not None and by_labels is not None:
        labels = labels._replace(token=_local_columns(labels.token, vocab, axis))
        total = by_logprob.at[_used(labels.place, g.size)].add(by_labels, mode="drop")
        by_label = _label_gradients(saved, total, by_entropy, by_labels, output).astype(x.dtype)
        g_sum = total[:, None]

    def step(
        first: Column, size: int, sums: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        by_x, by_table = sums
        columns = _columns_of(table, first, size, output)
        z, pull_back = jax.vjp(output.logits, _products(x, columns, output))
        log_p = z - normaliser
        by_z = -jnp.exp(log_p) * (g_sum + h * (log_p + entropy))
        by_z += jnp.where(_is_token_column(tokens, first, size), g, 0.0)
        by_r = pull_back(by_z)[0].astype(x.dtype)
        if labels is not None:
            place, column = _label_columns(labels, first, size)
            by_r = by_r.at[place, column].set(by_label, mode="drop")
        by_x += _einsum(f"tv,{output.letters}->td", by_r, columns)
        by_columns = _einsum(f"tv,td->{output.letters}", by_r, x).astype(table.dtype)
        by_table = lax.dynamic_update_slice_in_dim(
            by_table, by_columns, start_index=first, axis=output.vocab_axis
        )
        return by_x, by_table

    nothing = jnp.zeros(x.shape, jnp.float32), jnp.zeros_like(table)
    by_x, by_table = _over_chunks(vocab, _chunk(tokens, vocab, output), step, nothing)
    return by_x.astype(x.dtype), by_table


def _label_gradients(
    saved: SavedArrays,
    g_sum: Float[Array, " T"],
    h: Float[Array, " T"],
    by_labels: Float[Array, " L"],
    output: OutputLayer,
) -> Float[Array, " L"]:
    """∂r_v for the token v of each label, by the module's equations, without a chunk's logits.

    The logit follows from the label's log-probability, which the forward pass has saved. `g_sum`
    has Σ_u g_u of each position, and `by_labels` has g_v of each label.
    """
    assert saved.labels is not None and saved.of_labels is not None
    place, log_p = saved.labels.place, saved.of_labels
    by_z = -jnp.exp(log_p) * (g_sum[place] + h[place] * (log_p + saved.entropy[place])) + by_labels
    return by_z * output.slope(log_p + saved.normaliser[place])


# --- sums over columns


class _ColumnSums(NamedTuple):
    """The four numbers of the module's equations for each token, over some of the columns.

    The logits of labels are added up in the same way as z_y.
    """

    top: Float[Array, " T"]  # m
    total: Float[Array, " T"]  # s
    weighted: Float[Array, " T"]  # a
    token_logit: Float[Array, " T"]  # z_y
    label_logit: Float[Array, " L"] | None = None  # z of each label

    def relative_to(self, top: jax.Array) -> "_ColumnSums":
        """These four numbers computed with `top`, which must be at least m, instead of m."""
        shift = self.top - top
        scale = jnp.exp(shift)
        weighted = scale * (self.weighted + shift * self.total)
        return self._replace(top=top, total=scale * self.total, weighted=weighted)


def _join(a: _ColumnSums, b: _ColumnSums) -> _ColumnSums:
    """The sums over all columns of `a` and `b`."""
    top = jnp.maximum(a.top, b.top)
    joined = jax.tree.map(jnp.add, a.relative_to(top), b.relative_to(top))
    return joined._replace(top=top)


# --- chunks of columns


def _chunk(tokens: jax.Array, vocab: int, output: OutputLayer) -> int:
    """The number of columns in a chunk on a device that has `vocab` columns.

    It is `output.chunk`, or the result of `chunk_columns` if `output.chunk` is None.
    """
    return min(output.chunk or chunk_columns(tokens.size, vocab), vocab)


def _over_chunks(
    vocab: int, chunk: int, step: Callable[[Column, int, Carry], Carry], start: Carry
) -> Carry:
    """Folds step(first column, number of columns, carry) over all chunks; returns the last carry.

    The last chunk may be smaller than `chunk`.
    """
    count, remainder = divmod(vocab, chunk)
    end = lax.fori_loop(0, count, lambda i, carry: step(i * chunk, chunk, carry), start)
    return step(count * chunk, remainder, end) if remainder else end


def _columns_of(table: jax.Array, first: Column, size: int, output: OutputLayer) -> jax.Array:
    return lax.dynamic_slice_in_dim(table, first, size, output.vocab_axis)


def _local_columns(tokens: jax.Array, vocab: int, axis: str | None) -> jax.Array:
    """i32[T]: the index of each token's column among the `vocab` columns of this device.

    If the index is outside 0 .. `vocab` - 1, another device has the column.
    """
    return tokens if axis is None else tokens - lax.axis_index(axis) * vocab


def _is_token_column(tokens: jax.Array, first: Column, size: int) -> jax.Array:
    """bool[T, v]: whether the column of a token is the v-th column of the chunk at `first`."""
    return tokens[:, None] == first + jnp.arange(size)


def _label_columns(labels: LabelTokens, first: Column, size: int) -> tuple[jax.Array, jax.Array]:
    """(i32[L], i32[L]): place and column of each label in the chunk of `size` columns at `first`.

    Labels whose column is in another chunk, or whose place is on another device, have the column
    `size`, which the chunk does not have.
    """
    column = labels.token - first
    is_here = (labels.place >= 0) & (column >= 0) & (column < size)
    return jnp.maximum(labels.place, 0), jnp.where(is_here, column, size)


def _at_labels(z: Float[Array, "T v"], labels: LabelTokens, first: Column) -> Float[Array, " L"]:
    """The logits of the labels whose columns are in the chunk at `first`; 0 for other labels."""
    place, column = _label_columns(labels, first, z.shape[1])
    return z.at[place, column].get(mode="fill", fill_value=0.0)


def _used(places: Int[Array, " L"], count: int) -> Int[Array, " L"]:
    """The places, with `count` for -1.

    An index of -1 would be the last of `count` entries, while `count` is past all of them.
    """
    return jnp.where(places < 0, count, places)


def _products(x: jax.Array, columns: jax.Array, output: OutputLayer) -> jax.Array:
    """f32[T, v]: x·W_v for the columns of a chunk."""
    return _einsum(f"td,{output.letters}->tv", x, columns)


def _einsum(letters: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(letters, a, b, preferred_element_type=jnp.float32)
