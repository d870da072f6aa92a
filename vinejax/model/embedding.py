"""Embeddings of whole sequences from a table that is split over the mesh.

By hand: left to itself, the compiler brings the gradients of all rows together on every device, or
adds up whole tables.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from vinejax.model.sharding import ROWS, constrain, fit, spec_for, tensor_only


def lookup(
    table: Float[Array, "V D"], tokens: Int[Array, "*shape"], mesh: Mesh | None
) -> Float[Array, "*shape D"]:
    """table[tokens]; on a mesh rows of tokens [B, T] are split over `data` and `fsdp`."""
    if mesh is None or mesh.size == 1 or fit(P(ROWS), tokens.shape[:1], mesh) != P(ROWS):
        return table[tokens]
    return _lookup(table, tokens, mesh)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _lookup(table: jax.Array, tokens: jax.Array, mesh: Mesh) -> jax.Array:
    used = tensor_only(_spec(table, mesh))
    is_split = used[0] is not None
    by_position = is_split and tokens.shape[1] % mesh.shape["tensor"] == 0

    def own(part: jax.Array, tokens: jax.Array) -> jax.Array:
        place, is_mine = _place(tokens, part.shape[0], is_split)
        x = jnp.where(is_mine[..., None], part[jnp.where(is_mine, place, 0)], 0)
        if by_position:
            return lax.psum_scatter(x, "tensor", scatter_dimension=1, tiled=True)
        return lax.psum(x, "tensor") if is_split else x

    return jax.shard_map(
        own, mesh=mesh, check_vma=False,
        in_specs=(used, P(ROWS, None)),
        out_specs=P(ROWS, "tensor" if by_position else None, None),
    )(constrain(table, mesh, *used), tokens)  # fmt: skip


def _spec(table: jax.Array, mesh: Mesh) -> P:
    return spec_for((jax.tree_util.DictKey("embed"),), table.shape, mesh)


def _place(
    tokens: jax.Array, size: int, is_split: bool
) -> tuple[Int[Array, "B T"], jax.Array]:  # fmt: skip
    """Rows of a place's part of the table, and whether the tokens are among them."""
    place = tokens - lax.axis_index("tensor") * size if is_split else tokens
    return place, (place >= 0) & (place < size)


def _lookup_back(
    mesh: Mesh, kept: tuple[jax.Array, jax.Array], g: Float[Array, "B T D"]
) -> tuple[jax.Array, None]:
    """The table's gradient, where the table lies: each place adds up its own rows' in float32."""
    table, tokens = kept
    (V, D), spec = table.shape, _spec(table, mesh)
    is_split = tensor_only(spec)[0] is not None
    size = V // mesh.shape["tensor"] if is_split else V
    by_fsdp = [i for i, entry in enumerate(spec) if entry and "fsdp" in entry]

    def own(g: jax.Array, tokens: jax.Array) -> jax.Array:
        place, is_mine = _place(tokens, size, is_split)
        part = jnp.zeros((size, D)).at[jnp.where(is_mine, place, size)].add(g, mode="drop")
        part = part.astype(g.dtype)
        if not by_fsdp:
            return lax.psum(part, ROWS)
        part = lax.psum_scatter(part, "fsdp", scatter_dimension=by_fsdp[0], tiled=True)
        return lax.psum(part, "data")

    part = jax.shard_map(
        own, mesh=mesh, check_vma=False,
        in_specs=(P(ROWS, None, None), P(ROWS, None)), out_specs=spec,
    )(g, tokens)  # fmt: skip
    # libtpu 0.0.42 would move this sum out of a loop over microbatches, and fail in doing so
    # (while_loop_all_reduce_code_motion).
    return lax.optimization_barrier(part.astype(table.dtype)), None


_lookup.defvjp(lambda *args: (_lookup(*args), args[:2]), _lookup_back)
