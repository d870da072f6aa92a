"""The log-probability and entropy of tokens, on a mesh, with a hand-written gradient.

The functions of `chunked_softmax.py` run in a `shard_map`, forward and backward. Otherwise, the
compiler would add up the gradient of the output matrix over all devices for every chunk.

Rows are split over `data` and `fsdp`, and the vocabulary over `tensor`. If `tensor` does not divide
the vocabulary, it splits positions instead.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from vinejax.model import sharding
from vinejax.model.chunked_softmax import (
    LabelTokens,
    OutputLayer,
    SavedArrays,
    Softmax,
    chunked_gradient,
    chunked_softmax,
)
from vinejax.model.sharding import ROWS, constrain, tensor_only

PerToken = Float[Array, "B T"]


class TokenScores(NamedTuple):
    """What `token_scores` computes, all float32."""

    logprob: PerToken
    entropy: PerToken
    of_labels: Float[Array, "B N"] | None  # log p of each label, 0 at padding; None: no labels


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def token_scores(
    x: Float[Array, "B T D"],
    table: Float[Array, "..."],
    tokens: Int[Array, "B T"],
    labels: LabelTokens | None,
    output: OutputLayer,
    mesh: Mesh | None,
    axis: str | None = None,
) -> TokenScores:
    """Log p of `tokens` and labels, entropy of p, where p[b, t] is the softmax of x[b, t]'s logits.

    The gradient of the table is summed over rows and has the layout of a parameter.

    Args:
      x: hidden states after the final norm, in the dtype of the products.
      table: the output matrix in the same dtype, laid out like a parameter or gathered over `fsdp`.
      tokens: int32, for each position the token whose log-probability is computed.
      labels: [B, N], further tokens whose log-probabilities are computed. A place is the index, in
        the row, of the hidden state that gives the logits, and -1 at padding. None: no labels.
      output: how to compute logits from `x` and `table`.
      mesh: the mesh; None: there is one device, or the compiler chooses the layout.
      axis: the mesh axis that splits the columns of the table, for calls inside a `shard_map`,
        where `mesh` is None; if `axis` is None, every device has all columns.
    """
    return _forward(x, table, tokens, labels, output, mesh, axis)[0]


class _Layout(NamedTuple):
    """The specs of arrays while products with the output matrix are computed."""

    x: P  # hidden states [B, T, D]
    per_token: P  # arrays [B, T]
    table: P  # the parameter; in products, only `tensor` splits it
    axis: str | None  # mesh axis that splits the vocabulary
    by_x: P  # gradient [B, T, D] for x
    splits_positions: bool  # whether `tensor` splits the positions of `by_x`

    @property
    def divides_positions(self) -> bool:
        """Whether each device along `tensor` has only some positions of x."""
        return self.axis is None and self.splits_positions


def _layout(
    x: jax.Array, table: jax.Array, output: OutputLayer, mesh: Mesh | None
) -> _Layout | None:
    """The layout on a mesh. None means that the compiler chooses the layout.

    The result is None without a mesh of several devices, or if shards do not divide the rows of x.
    """
    if mesh is None or mesh.size == 1 or x.shape[0] % sharding.num_shards(mesh):
        return None
    spec = sharding.spec_for((jax.tree_util.DictKey(output.name),), table.shape, mesh)
    by_position = sharding.drop_uneven_axes(P(*sharding.BY_POSITION), x.shape, mesh)
    axis = None if tensor_only(spec)[output.vocab_axis] is None else "tensor"
    used = by_position if axis is None else P(*sharding.WHOLE)
    is_even = x.shape[1] % mesh.shape["tensor"] == 0
    return _Layout(used, P(*used[:2]), spec, axis, by_position, is_even)


def _forward(
    x: jax.Array,
    table: jax.Array,
    tokens: jax.Array,
    labels: LabelTokens | None,
    output: OutputLayer,
    mesh: Mesh | None,
    axis: str | None,
) -> tuple[TokenScores, SavedArrays]:
    layout = _layout(x, table, output, mesh)
    axis = layout.axis if layout else axis

    def local(
        x: jax.Array, table: jax.Array, tokens: jax.Array, labels: LabelTokens | None
    ) -> Softmax:
        flat = _flat_labels(labels, tokens.shape, layout)
        softmax = chunked_softmax(_flat(x), table, tokens.reshape(-1), output, axis, flat)
        of_labels = softmax.of_labels
        if labels is not None and of_labels is not None:
            of_labels = of_labels.reshape(labels.token.shape)
            if layout and layout.divides_positions:  # another device may have the position
                of_labels = lax.psum(of_labels, "tensor")
        logprob, entropy, normaliser = (y.reshape(tokens.shape) for y in softmax[:3])
        return Softmax(logprob, entropy, normaliser, of_labels)

    if layout is None or mesh is None:
        softmax = local(x, table, tokens, labels)
    else:
        used, per_label = tensor_only(layout.table), P(ROWS, None)
        in_specs = (layout.x, used, layout.per_token, per_label)
        out_specs = Softmax(*[layout.per_token] * 3, per_label)  # pyright: ignore
        forward = sharding.on_shards(mesh, local, in_specs, out_specs)
        softmax = forward(x, constrain(table, mesh, *used), tokens, labels)
        softmax = jax.tree.map(lambda y: constrain(y, mesh, ROWS, None), softmax)
    saved = SavedArrays(
        x, table, tokens, softmax.entropy, softmax.normaliser, labels, softmax.of_labels
    )
    return TokenScores(softmax.logprob, softmax.entropy, softmax.of_labels), saved


def _gradient(
    output: OutputLayer,
    mesh: Mesh | None,
    axis: str | None,
    saved: SavedArrays,
    gradients: TokenScores,
) -> tuple[jax.Array, jax.Array, None, None]:
    layout = _layout(saved.x, saved.table, output, mesh)
    axis = layout.axis if layout else axis

    def local(saved: SavedArrays, gradients: TokenScores) -> tuple[jax.Array, jax.Array]:
        x, table, tokens, entropy, normaliser, labels, of_labels = saved
        flat = _flat_labels(labels, tokens.shape, layout)
        tokens, entropy, normaliser = (y.reshape(-1) for y in (tokens, entropy, normaliser))
        g, h, by_labels, of_labels = jax.tree.map(lambda y: y.reshape(-1), (*gradients, of_labels))
        part = SavedArrays(_flat(x), table, tokens, entropy, normaliser, flat, of_labels)
        by_x, by_table = chunked_gradient(part, g, h, output, axis, by_labels)
        return by_x.reshape(x.shape), by_table

    if layout is None or mesh is None:
        by_x, by_table = local(saved, gradients)
        return by_x, by_table, None, None

    def summed(saved: SavedArrays, gradients: TokenScores) -> tuple[jax.Array, jax.Array]:
        by_x, by_table = local(saved, gradients)
        if axis is None:
            if layout.splits_positions:  # otherwise each device along `tensor` has all positions
                by_table = lax.psum(by_table, "tensor")
        elif layout.splits_positions:
            by_x = lax.psum_scatter(by_x, axis, scatter_dimension=1, tiled=True)
        else:
            by_x = lax.psum(by_x, axis)
        return by_x, sharding.sum_over_rows(by_table, layout.table)

    used, per_label = tensor_only(layout.table), P(ROWS, None)
    specs = SavedArrays(layout.x, used, *[layout.per_token] * 3, *[per_label] * 2)  # pyright: ignore
    by_output = TokenScores(layout.per_token, layout.per_token, per_label)  # pyright: ignore
    gradient = sharding.on_shards(mesh, summed, (specs, by_output), (layout.by_x, layout.table))
    saved = saved._replace(table=constrain(saved.table, mesh, *used))
    by_x, by_table = gradient(saved, gradients)
    # The barrier keeps libtpu from moving the sum out of the loop over microbatches, as it does in
    # `embedding.py`.
    return by_x, lax.optimization_barrier(by_table), None, None


def _flat_labels(
    labels: LabelTokens | None, shape: tuple[int, ...], layout: _Layout | None
) -> LabelTokens | None:
    """The labels [B, N] of a device as [B·N], with places among its B·T tokens.

    `shape` is (B, T).
    """
    if labels is None:
        return None
    rows, length = shape
    before = lax.axis_index("tensor") * length if layout and layout.divides_positions else 0
    in_row = labels.place - before
    is_here = (labels.place >= 0) & (in_row >= 0) & (in_row < length)
    place = jnp.arange(rows)[:, None] * length + in_row
    return LabelTokens(jnp.where(is_here, place, -1).reshape(-1), labels.token.reshape(-1))


def _flat(x: Float[Array, "B T D"]) -> jax.Array:
    return x.reshape(-1, x.shape[-1])


token_scores.defvjp(_forward, _gradient)
