"""A mixture of experts: many gated MLPs, of which a router chooses a few for each token.

All pairs of a token and one of its experts are sorted by expert, and each of the three products is
one `jax.lax.ragged_dot`. So no pair is dropped, whatever the load of an expert.

On a mesh, the axis `tensor` splits the experts (expert parallelism). As for a dense MLP, each
device along `tensor` has all tokens of its rows. It computes the pairs of its own experts, and the
outputs of the devices are added up. Its arrays have room for all pairs, because all tokens may
choose the experts of one device.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from vinejax.model.sharding import ROWS, drop_uneven_axes, on_shards


@dataclasses.dataclass(frozen=True)
class Experts:
    """The experts of a layer."""

    count: int
    per_token: int  # number of experts that a token uses
    ffn: int  # feed-forward width of an expert
    renormalised: bool  # whether the weights of a token's experts are scaled to the sum 1


class Kernels(NamedTuple):
    """The kernels of a layer's router and of its E experts, or of the E that a device has."""

    router: Float[Array, "D all_experts"]
    gate: Float[Array, "E D F"]
    up: Float[Array, "E D F"]
    down: Float[Array, "E F D"]


def permuted(x: Float[Array, "rows D"], order: Int[Array, " rows"]) -> Float[Array, "rows D"]:
    """x[order] for a permutation, whose gradient then adds up nothing by index."""
    return x.at[order].get(mode="promise_in_bounds", unique_indices=True)


def mixture(
    x: Float[Array, "*batch D"],
    kernels: Kernels,
    experts: Experts,
    activation: Callable[[jax.Array], jax.Array],
    axis: str | None = None,
) -> Float[Array, "*batch D"]:
    """The sum of the outputs of each token's experts, times their weights.

    A weight is the expert's share in the softmax of the router's float32 logits. Inside a
    `shard_map` whose mesh axis `axis` splits the experts, the sum is over the experts of the
    device, and the caller adds up the devices' sums. If `axis` is None, the device has all experts.
    """
    rows, count, k = x.reshape(-1, x.shape[-1]), kernels.gate.shape[0], experts.per_token
    logits = jnp.matmul(rows, kernels.router, preferred_element_type=jnp.float32)
    weights, chosen = lax.top_k(jax.nn.softmax(logits), k)
    if experts.renormalised:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    number = chosen.reshape(-1)
    if axis is not None:
        number = number - lax.axis_index(axis) * count
    number = jnp.where((number >= 0) & (number < count), number, count)  # `count`: not here
    order = jnp.argsort(number)  # pairs by expert, those of other devices last
    sizes = jnp.bincount(number, length=count + 1)[:count].astype(jnp.int32)
    # Rows after the last group are undefined in products and their gradients.
    is_here = (jnp.arange(number.size) < sizes.sum())[:, None]
    inputs = jnp.where(is_here, permuted(jnp.repeat(rows, k, axis=0), order), 0)
    gate, up = (lax.ragged_dot(inputs, kernel, sizes) for kernel in (kernels.gate, kernels.up))
    outputs = lax.ragged_dot(activation(gate) * up, kernels.down, sizes)
    outputs = permuted(jnp.where(is_here, outputs, 0), jnp.argsort(order))
    outputs = outputs.reshape(*chosen.shape, -1).astype(jnp.float32)
    summed = jnp.sum(weights[..., None] * outputs, axis=1)
    return summed.astype(x.dtype).reshape(x.shape)


def mixture_over_mesh(
    mesh: Mesh | None,
    x: Float[Array, "B T D"],
    kernels: Kernels,
    experts: Experts,
    activation: Callable[[jax.Array], jax.Array],
) -> Float[Array, "B T D"]:
    """`mixture` of whole sequences, with rows over `data` and `fsdp`, and experts over `tensor`."""
    if mesh is None or mesh.size == 1:
        return mixture(x, kernels, experts, activation)
    by_position = x.shape[1] % mesh.shape["tensor"] == 0

    def local(x: jax.Array, kernels: Kernels) -> jax.Array:
        part = mixture(x, kernels, experts, activation, "tensor")
        if by_position:
            return lax.psum_scatter(part, "tensor", scatter_dimension=1, tiled=True)
        return lax.psum(part, "tensor")

    rows = drop_uneven_axes(P(ROWS, None, None), x.shape, mesh)
    specs = Kernels(P(), *[P("tensor")] * 3)  # pyright: ignore
    out = P(rows[0], "tensor" if by_position else None, None)
    return on_shards(mesh, local, (rows, specs), out)(x, kernels)
