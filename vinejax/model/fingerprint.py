"""A short text that identifies weights, to the bit."""

import functools
import hashlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, UInt32

from vinejax.model.decoder import Params
from vinejax.model.sharding import replicate

WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}  # bytes of a weight -> integer of its size


def fingerprint(params: Params, mesh: Mesh | None) -> str:
    """A text that depends on the bits of the weights and not on the mesh.

    Other weights have the same text with chance 2^-32 for each array that differs. The weights are
    read once, on the devices; the function waits for the result.
    """
    return hashlib.blake2b(np.asarray(_sums(params, mesh)).tobytes(), digest_size=8).hexdigest()


@functools.partial(jax.jit, static_argnames="mesh")
def _sums(params: Params, mesh: Mesh | None) -> UInt32[Array, " arrays"]:
    """The sum of each array's bits as integers, which the order of addition does not change."""
    sums = [
        jnp.sum(lax.bitcast_convert_type(x, WORDS[x.dtype.itemsize]), dtype=jnp.uint32)
        for x in jax.tree.leaves(params)
    ]
    return replicate(jnp.stack(sums), mesh)
