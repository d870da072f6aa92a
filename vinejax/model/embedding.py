"""Looks up the embeddings of whole sequences in a table that is split over the mesh.

The lookup is a `shard_map`. Otherwise the compiler would gather the gradients of all rows on every
device, or add up the gradients of whole tables.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from vinejax.model import sharding
from vinejax.model.sharding import ROWS, constrain, tensor_only


def embedding_lookup(
    table: Float[Array, "V D"], tokens: Int[Array, "*shape"], mesh: Mesh | None
) -> Float[Array, "*shape D"]:
    """table[tokens]. On a mesh, rows of tokens [B, T] are split over `data` and `fsdp`."""
    if mesh is None or mesh.size == 1 or tokens.shape[0] % sharding.num_shards(mesh):
        return table[tokens]
    return _lookup(table, tokens, mesh)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _lookup(table: jax.Array, tokens: jax.Array, mesh: Mesh) -> jax.Array:
    used = tensor_only(_spec(table, mesh))
    is_split = used[0] is not None
    by_position = is_split and tokens.shape[1] % mesh.shape["tensor"] == 0

    def lookup_part(part: jax.Array, tokens: jax.Array) -> jax.Array:
        row, is_mine = _row_of_part(tokens, part.shape[0], is_split)
        x = jnp.where(is_mine[..., None], part[jnp.where(is_mine, row, 0)], 0)
        if by_position:
            return lax.psum_scatter(x, "tensor", scatter_dimension=1, tiled=True)
        return lax.psum(x, "tensor") if is_split else x

    in_specs = (used, P(ROWS, None))
    out_specs = P(ROWS, "tensor" if by_position else None, None)
    lookup = sharding.on_shards(mesh, lookup_part, in_specs, out_specs)
    return lookup(constrain(table, mesh, *used), tokens)


def _spec(table: jax.Array, mesh: Mesh) -> P:
    return sharding.spec_for((jax.tree_util.DictKey("embed"),), table.shape, mesh)


def _row_of_part(tokens: jax.Array, size: int, is_split: bool) -> tuple[jax.Array, jax.Array]:
    """(index of each token's row in this device's part, whether the part contains the row).

    A part has `size` rows. It is the whole table unless the axis `tensor` splits the table
    (`is_split`).
    """
    row = tokens - lax.axis_index("tensor") * size if is_split else tokens
    return row, (row >= 0) & (row < size)


def _lookup_gradient(
    mesh: Mesh, saved: tuple[jax.Array, jax.Array], g: Float[Array, "B T D"]
) -> tuple[jax.Array, None]:
    """The gradient of the table, laid out like the table.

    Each device sums the gradients of its own tokens in float32.
    """
    table, tokens = saved
    V, D = table.shape
    spec = _spec(table, mesh)
    is_split = tensor_only(spec)[0] is not None
    size = V // mesh.shape["tensor"] if is_split else V

    def gradient_part(g: jax.Array, tokens: jax.Array) -> jax.Array:
        row, is_mine = _row_of_part(tokens, size, is_split)
        part = jnp.zeros((size, D)).at[jnp.where(is_mine, row, size)].add(g, mode="drop")
        return sharding.sum_over_rows(part.astype(g.dtype), spec)

    in_specs = (P(ROWS, None, None), P(ROWS, None))
    gradient = sharding.on_shards(mesh, gradient_part, in_specs, spec)
    # The barrier keeps libtpu 0.0.42 from moving this sum out of a loop over microbatches, in which
    # its pass while_loop_all_reduce_code_motion fails.
    return lax.optimization_barrier(gradient(g, tokens).astype(table.dtype)), None


_lookup.defvjp(lambda *args: (_lookup(*args), args[:2]), _lookup_gradient)
