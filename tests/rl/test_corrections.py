"""Importance weights of the sampler's tokens, against loops."""

import math

import numpy as np
import pytest

from vinejax.rl.corrections import correction_weights

MASK = np.array([[1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0]], bool)
SAMPLER = -np.random.default_rng(0).exponential(1.0, (3, 4)).astype(np.float32)
MOVED = np.array([[0.5, -1.5, 0.25, 9], [9, 1.0, 0.5, 0.75], [9] * 4], np.float32)
OLD = SAMPLER + MOVED


def loop(per: str, outside: str, low: float, high: float) -> np.ndarray:
    out = np.zeros(MASK.shape)
    for b, t in zip(*np.nonzero(MASK), strict=True):
        d = sum(float(MOVED[b, u]) for u in range(4) if MASK[b, u]) if per == "sequence" else 0.0
        weight = math.exp(d or float(MOVED[b, t]))
        if outside == "truncate":
            out[b, t] = min(max(weight, low), high)
        else:
            out[b, t] = weight if low <= weight <= high else 0.0
    return out


@pytest.mark.parametrize("per", ["token", "sequence"])
@pytest.mark.parametrize("outside", ["truncate", "mask"])
@pytest.mark.parametrize("low, high", [(0.0, math.inf), (0.0, 2.0), (0.5, 5.0), (0.6, 1.5)])
def test_weights_equal_the_loop(per: str, outside: str, low: float, high: float):
    """TRL's default is the sequence mask from 0 to 3; IcePop is the token mask from 0.5 to 5."""
    weights = correction_weights(OLD, SAMPLER, MASK, per, outside, low, high)
    np.testing.assert_allclose(weights, loop(per, outside, low, high), rtol=1e-5)


@pytest.mark.parametrize("per", ["token", "sequence"])
def test_equal_policies_have_a_weight_of_exactly_1(per: str):
    for outside in ("truncate", "mask"):
        weights = correction_weights(OLD, OLD, MASK, per, outside, low=0.5, high=3.0)
        np.testing.assert_array_equal(weights, MASK.astype(np.float32))


def test_a_ratio_beyond_float32_is_finite():
    old, sampler = np.where(MASK, 0.0, np.nan), np.where(MASK, -500.0, np.nan)
    weights = np.asarray(correction_weights(old, sampler, MASK, "sequence", "truncate"))
    assert np.isfinite(weights).all() and (weights[MASK] > 1e17).all()
    masked = correction_weights(old, sampler, MASK, "sequence", "mask", low=0, high=3)
    assert not np.asarray(masked).any()
