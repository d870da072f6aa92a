"""The log-probability and entropy of each token, on a mesh, with a hand-written gradient.

The functions of `chunked_softmax.py` run in a `shard_map`, forward and backward. Otherwise, the
compiler would add up the gradient of the output matrix over all devices for every chunk.

Rows are split over `data` and `fsdp`, and the vocabulary over `tensor`. If `tensor` does not divide
the vocabulary, it splits positions instead.
"""

import functools
from typing import NamedTuple

import jax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from vinejax.model import sharding
from vinejax.model.chunked_softmax import (
    OutputLayer,
    SavedArrays,
    Softmax,
    chunked_gradient,
    chunked_softmax,
)
from vinejax.model.sharding import ROWS, constrain, tensor_only

PerToken = Float[Array, "B T"]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def logprob_and_entropy(
    x: Float[Array, "B T D"],
    table: Float[Array, "..."],
    tokens: Int[Array, "B T"],
    output: OutputLayer,
    mesh: Mesh | None,
    axis: str | None = None,
) -> tuple[PerToken, PerToken]:
    """(log p of `tokens`, entropy of p), float32, where p[b, t] is the softmax of x[b, t]'s logits.

    The gradient of the table is summed over rows and has the layout of a parameter.

    Args:
      x: hidden states after the final norm, in the dtype of the products.
      table: the output matrix in the same dtype, laid out like a parameter or gathered over `fsdp`.
      tokens: int32, for each position the token whose log-probability is computed.
      output: how to compute logits from `x` and `table`.
      mesh: the mesh; None: there is one device, or the compiler chooses the layout.
      axis: the mesh axis that splits the columns of the table, for calls inside a `shard_map`,
        where `mesh` is None; if `axis` is None, every device has all columns.
    """
    return _forward(x, table, tokens, output, mesh, axis)[0]


class _Layout(NamedTuple):
    """The specs of arrays while products with the output matrix are computed."""

    x: P  # hidden states [B, T, D]
    per_token: P  # arrays [B, T]
    table: P  # the parameter; in products, only `tensor` splits it
    axis: str | None  # mesh axis that splits the vocabulary
    by_x: P  # gradient [B, T, D] for x
    splits_positions: bool  # whether `tensor` splits the positions of `by_x`


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
    output: OutputLayer,
    mesh: Mesh | None,
    axis: str | None,
) -> tuple[tuple[PerToken, PerToken], SavedArrays]:
    layout = _layout(x, table, output, mesh)
    axis = layout.axis if layout else axis

    def local(x: jax.Array, table: jax.Array, tokens: jax.Array) -> Softmax:
        softmax = chunked_softmax(_flat(x), table, tokens.reshape(-1), output, axis)
        return Softmax(*(y.reshape(tokens.shape) for y in softmax))

    if layout is None or mesh is None:
        softmax = local(x, table, tokens)
    else:
        used = tensor_only(layout.table)
        in_specs = (layout.x, used, layout.per_token)
        forward = sharding.on_shards(mesh, local, in_specs, layout.per_token)
        softmax = forward(x, constrain(table, mesh, *used), tokens)
        softmax = Softmax(*(constrain(y, mesh, ROWS, None) for y in softmax))
    saved = SavedArrays(x, table, tokens, softmax.entropy, softmax.normaliser)
    return (softmax.logprob, softmax.entropy), saved


def _gradient(
    output: OutputLayer,
    mesh: Mesh | None,
    axis: str | None,
    saved: SavedArrays,
    gradients: tuple[PerToken, PerToken],
) -> tuple[jax.Array, jax.Array, None]:
    layout = _layout(saved.x, saved.table, output, mesh)
    axis = layout.axis if layout else axis

    def local(x: jax.Array, table: jax.Array, *per_token: jax.Array) -> tuple[jax.Array, jax.Array]:
        tokens, entropy, normaliser, g, h = (y.reshape(-1) for y in per_token)
        part = SavedArrays(_flat(x), table, tokens, entropy, normaliser)
        by_x, by_table = chunked_gradient(part, g, h, output, axis)
        return by_x.reshape(x.shape), by_table

    if layout is None or mesh is None:
        by_x, by_table = local(*saved, *gradients)
        return by_x, by_table, None

    def summed(*parts: jax.Array) -> tuple[jax.Array, jax.Array]:
        by_x, by_table = local(*parts)
        if axis is None:
            if layout.splits_positions:  # otherwise each device along `tensor` has all positions
                by_table = lax.psum(by_table, "tensor")
        elif layout.splits_positions:
            by_x = lax.psum_scatter(by_x, axis, scatter_dimension=1, tiled=True)
        else:
            by_x = lax.psum(by_x, axis)
        return by_x, sharding.sum_over_rows(by_table, layout.table)

    used = tensor_only(layout.table)
    in_specs = (layout.x, used, *[layout.per_token] * 5)
    gradient = sharding.on_shards(mesh, summed, in_specs, (layout.by_x, layout.table))
    saved = saved._replace(table=constrain(saved.table, mesh, *used))
    by_x, by_table = gradient(*saved, *gradients)
    # The barrier keeps libtpu from moving the sum out of the loop over microbatches, as it does in
    # `embedding.py`.
    return by_x, lax.optimization_barrier(by_table), None


def _flat(x: Float[Array, "B T D"]) -> jax.Array:
    return x.reshape(-1, x.shape[-1])


logprob_and_entropy.defvjp(_forward, _gradient)
