"""Weights of sampler against learner, against loops."""

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
@pytest.mark.parametrize("bounds", [(0.0, math.inf), (0.0, 2.0), (0.5, 5.0), (0.6, 1.5)])
def test_weights_equal_the_loop(per: str, outside: str, bounds: tuple[float, float]):
    """TRL's default is the sequence mask from 0 to 3; IcePop is the token mask from 0.5 to 5."""
    found = correction_weights(OLD, SAMPLER, MASK, per, outside, *bounds)
    np.testing.assert_allclose(found, loop(per, outside, *bounds), rtol=1e-5)


@pytest.mark.parametrize("per", ["token", "sequence"])
def test_equal_policies_have_a_weight_of_exactly_1(per: str):
    for outside in ("truncate", "mask"):
        found = correction_weights(OLD, OLD, MASK, per, outside, 0.5, 3.0)
        np.testing.assert_array_equal(found, MASK.astype(np.float32))


def test_a_ratio_beyond_float32_is_finite():
    old = np.where(MASK, 0.0, np.nan)
    found = np.asarray(correction_weights(old, np.where(MASK, -500.0, np.nan), MASK, "sequence",
                                          "truncate"))  # fmt: skip
    assert np.isfinite(found).all() and (found[MASK] > 1e17).all()
    masked = correction_weights(old, np.where(MASK, -500.0, np.nan), MASK, "sequence", "mask", 0, 3)
    assert not np.asarray(masked).any()
