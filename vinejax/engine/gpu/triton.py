"""Pallas Triton, in which the kernels for GPU are written, behind the few names that they use.

jax 0.11 and later mark this backend as deprecated and still contain it. All that a kernel takes
from it is in this file, so that another backend can replace it here.

A kernel is a function of references to whole arrays in the GPU's memory, first the inputs, then
the results. Each program of the kernel's grid runs the function once. The lengths of arrays inside
a kernel must be powers of two.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pallas_triton
from jax.typing import ArrayLike
from jaxtyping import Array, Float

Ref = Any  # Pallas's reference to an array in the GPU's memory

program_id = pl.program_id


def load(ref: Ref, *index: ArrayLike, mask: ArrayLike | None = None, other: float = 0) -> jax.Array:
    """The entries of `ref` at the index arrays, which have an array per axis and are broadcast.

    Where `mask` is False, an entry is not read, and the result is `other`.
    """
    places, mask = _broadcast(index, mask)
    return pallas_triton.load(ref.at[places], mask=mask, other=None if mask is None else other)


def store(ref: Ref, x: jax.Array, *index: ArrayLike, mask: ArrayLike | None = None) -> None:
    """Writes x to `ref` at the index arrays, which are broadcast, except where `mask` is False."""
    places, mask = _broadcast(index, mask)
    pallas_triton.store(ref.at[places], x.astype(ref.dtype), mask=mask)


def product(
    x: Float[Array, "rows inner"], y: Float[Array, "_ _"], axis: int
) -> Float[Array, "rows n"]:
    """The matrix product of x and y, contracted over `axis` of y, in float32.

    No length may be less than 16. As elsewhere, `jax_default_matmul_precision` sets the rounding of
    float32 factors.
    """
    dimensions = (((1,), (axis,)), ((), ()))
    return lax.dot_general(x, y, dimensions, preferred_element_type=jnp.float32)


def run(
    kernel: Callable[..., None],
    grid: tuple[int, ...],
    inputs: Sequence[jax.Array],
    results: Sequence[jax.ShapeDtypeStruct],
    in_place: Mapping[int, int] | None = None,
    warps: int = 4,
    stages: int = 3,
    interpret: bool = False,
) -> tuple[jax.Array, ...]:
    """Runs `kernel` once per program of the grid, and returns its results.

    `in_place` has pairs of an input's number and a result's number. Such a result has the memory of
    the input, and begins with the input's entries. A program has `warps` warps. The loads of a loop
    that feed a `product` are started `stages` - 1 iterations ahead. With `interpret` the kernel
    runs without a GPU, slowly.
    """
    parameters = pallas_triton.CompilerParams(num_warps=warps, num_stages=stages)
    kernel_call = pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=[pl.BlockSpec()] * len(inputs),
        out_specs=[pl.BlockSpec()] * len(results),
        out_shape=list(results),
        input_output_aliases=dict(in_place or {}),
        compiler_params=None if interpret else parameters,
        interpret=interpret,
    )
    return tuple(kernel_call(*inputs))


def _broadcast(
    index: tuple[ArrayLike, ...], mask: ArrayLike | None
) -> tuple[tuple[jax.Array, ...], jax.Array | None]:
    """The index arrays and the mask, broadcast to the shape of the index arrays together."""
    shape = jnp.broadcast_shapes(*(jnp.shape(places) for places in index))
    broadcast = tuple(jnp.broadcast_to(places, shape) for places in index)
    return broadcast, None if mask is None else jnp.broadcast_to(mask, shape)
