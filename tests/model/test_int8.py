"""Kernels in 8 bits: what is rounded, by how much, and what a weight that is not finite becomes."""

import jax.numpy as jnp
import numpy as np
import pytest

from vinejax.model.decoder import INT8_SCALE, Params
from vinejax.model.int8 import layer_in_int8

RNG = np.random.default_rng(0)
KERNELS = {"q": (6, 5), "out": (2, 3, 5), "gate": (5, 7)}  # of the decoding copy
OUTPUTS = {"q": 0, "out": 2, "gate": 1}  # the axis of the outputs


def a_layer() -> Params:
    layer = {name: {"kernel": RNG.normal(size=shape)} for name, shape in KERNELS.items()}
    layer["gate"]["bias"] = RNG.normal(size=7)
    layer["mlp_norm"] = {"scale": RNG.normal(size=5)}
    return {
        name: {key: jnp.asarray(x, jnp.float32) for key, x in part.items()}
        for name, part in layer.items()
    }


@pytest.mark.parametrize("name", KERNELS)
def test_no_weight_is_off_by_more_than_half_a_step_of_its_output(name: str):
    layer = a_layer()
    kernel, found = np.moveaxis(layer[name]["kernel"], OUTPUTS[name], -1), layer_in_int8(layer)
    integers, step = found[name]["kernel"], np.asarray(found[name][INT8_SCALE])
    assert integers.dtype == jnp.int8 and integers.shape == KERNELS[name]
    assert step.dtype == np.float32
    integers = np.moveaxis(np.asarray(integers, np.float64), OUTPUTS[name], -1)
    inputs = tuple(range(kernel.ndim - 1))
    np.testing.assert_allclose(step, np.abs(kernel).max(axis=inputs) / 127, rtol=1e-6)
    assert (np.abs(integers).max(axis=inputs) == 127).all()
    assert (np.abs(integers * step - kernel) <= step * 0.5001).all()


def test_biases_and_norms_stay():
    layer = a_layer()
    found = layer_in_int8(layer)
    assert found["mlp_norm"] is layer["mlp_norm"] and INT8_SCALE not in found["mlp_norm"]
    assert found["gate"]["bias"] is layer["gate"]["bias"]


def test_an_output_of_zeros_stays_zero_and_one_that_is_not_finite_is_seen():
    kernel = np.ones((4, 3), np.float32)
    kernel[:, 0], kernel[1, 1] = 0, np.nan
    found = layer_in_int8({"up": {"kernel": jnp.asarray(kernel)}})["up"]
    whole = np.asarray(found["kernel"], np.float32) * np.asarray(found[INT8_SCALE])
    assert (whole[:, 0] == 0).all()
    assert np.isnan(whole[:, 1]).all()
    np.testing.assert_allclose(whole[:, 2], 1, rtol=1e-6)
