"""A layer's kernels in 8 bits: decoding reads half the bytes of bfloat16.

A kernel W with the outputs j becomes integers Q from -127 to 127 and a factor for each output:
W[i, j] is about Q[i, j] s[j] with s[j] = max_i |W[i, j]| / 127, so that no weight is off by more
than s[j] / 2. A projection computes (x Q) s: `Projection` of model/decoder.py.
"""

from collections.abc import Collection

import jax.numpy as jnp

from vinejax.model.decoder import HEADS, INT8_SCALE, Params

LARGEST = 127


def layer_in_int8(layer: Params, transposed: Collection[str] = HEADS) -> Params:
    """One layer of the decoding copy with its kernels in 8 bits; biases and norms stay.

    Kernels of `transposed` projections lie [outputs, inputs], the others [inputs..., outputs]; the
    factors are float32[outputs].
    """

    def convert(name: str, part: Params) -> Params:
        if "kernel" not in part:
            return part
        kernel = part["kernel"].astype(jnp.float32)
        inputs = (1,) if name in transposed else tuple(range(kernel.ndim - 1))
        largest = jnp.max(jnp.abs(kernel), axis=inputs, keepdims=True)
        # If a weight is not finite, neither is the scale, and the logits show it.
        scale = jnp.where(largest == 0, 1.0, largest) / LARGEST
        rounded = jnp.round(kernel / scale).astype(jnp.int8)
        return {**part, "kernel": rounded, INT8_SCALE: scale.reshape(-1)}

    return {name: convert(name, part) for name, part in layer.items()}
