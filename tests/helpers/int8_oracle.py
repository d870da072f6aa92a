"""Weights rounded to 8 bits in NumPy, in the layout of the parameters."""

import jax.numpy as jnp
import numpy as np

from vinejax.model.decoder import Params

NUM_INPUTS = {"out": 2}  # axes of a kernel that are summed over, after that of the layers


def rounded_params(params: Params) -> Params:
    """The parameters with each kernel of a layer as integers times a factor for each output."""

    def rounded(name: str, part: Params) -> Params:
        if "kernel" not in part:
            return part
        kernel = np.asarray(part["kernel"], np.float32)
        inputs = tuple(range(1, 1 + NUM_INPUTS.get(name, 1)))
        largest = np.abs(kernel).max(axis=inputs, keepdims=True)
        step = np.where(largest == 0, np.float32(1), largest) / np.float32(127)
        return {**part, "kernel": jnp.asarray(np.round(kernel / step) * step, jnp.float32)}

    layers = {name: rounded(name, part) for name, part in params["layers"].items()}
    return {**params, "layers": layers}
