"""Masked sums, means and whitening."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import rl_oracles as oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from vinejax.rl.masked import masked_mean, masked_sum, whiten

B, T = 4, 9


@pytest.fixture
def ragged():
    """Random values, with NaN and inf where the mask is False, as in the whole third row."""
    rng = np.random.default_rng(0)
    mask = np.arange(T) < np.array([9, 4, 0, 1])[:, None]
    x = rng.normal(2.0, 3.0, (B, T)).astype(np.float32)
    return np.where(mask, x, np.where(rng.random((B, T)) < 0.5, np.nan, np.inf)), mask


def test_sum_and_mean_read_only_the_mask(ragged):
    x, mask = ragged
    np.testing.assert_allclose(masked_sum(x, mask), x[mask].sum(), rtol=1e-5)
    np.testing.assert_allclose(masked_mean(x, mask), x[mask].mean(), rtol=1e-5)
    rows = [row[m].sum() for row, m in zip(x, mask, strict=True)]
    np.testing.assert_allclose(masked_sum(x, mask, axis=1), rows, rtol=1e-5)
    means = [row[m].mean() if m.any() else 0.0 for row, m in zip(x, mask, strict=True)]
    np.testing.assert_allclose(masked_mean(x, mask, axis=1), means, rtol=1e-5)


def test_a_vector_broadcasts_to_the_mask():
    mask = np.array([[True, True, False], [False, True, True]])
    np.testing.assert_allclose(masked_mean(np.array([1, 3, 7]), mask, axis=1), [2.0, 5.0])


def test_mean_of_nothing_is_zero():
    assert masked_mean(np.full(3, np.nan), np.zeros(3, bool)) == 0.0


def test_sums_are_float32_for_every_dtype():
    mask = np.array([True, True, True])
    for dtype in (bool, np.int8, np.int64, np.float16, np.float64, jnp.bfloat16):
        total = masked_sum(np.ones(3, dtype), mask)
        assert total.dtype == jnp.float32 and total == 3.0
    # 300 does not fit into an int8, nor does 0.5 into any integer.
    assert masked_sum(np.full(3, 100, np.int8), mask) == 300.0
    assert masked_mean(np.array([0.25, 0.5, 0.75]), mask) == 0.5


@pytest.mark.parametrize("shift_mean", [True, False])
def test_whiten_matches_the_loop(ragged, shift_mean):
    x, mask = ragged
    expected = oracle.whiten(x, mask, shift_mean)
    np.testing.assert_allclose(whiten(x, mask, shift_mean), expected, rtol=1e-4, atol=1e-5)
    small = np.float32(1e-5) * x  # with a variance of about the 1e-8 that is added to it
    expected = oracle.whiten(small, mask, shift_mean)
    np.testing.assert_allclose(whiten(small, mask, shift_mean), expected, rtol=1e-4, atol=1e-5)


def test_whitened_tokens_have_mean_zero_and_bessel_variance_one(ragged):
    x, mask = ragged
    taken = np.asarray(whiten(x, mask))[mask]
    np.testing.assert_allclose(taken.mean(), 0.0, atol=1e-6)
    np.testing.assert_allclose(taken.var(ddof=1), 1.0, rtol=1e-5)


def test_without_shift_zero_stays_zero_and_ratios_are_kept():
    x = np.array([[0.0, 1.0, -3.0]])
    out = np.asarray(whiten(x, np.ones((1, 3), bool), shift_mean=False))
    assert out[0, 0] == 0.0
    np.testing.assert_allclose(out[0, 2] / out[0, 1], -3.0, rtol=1e-6)


@pytest.mark.parametrize("shift_mean", [True, False])
def test_whiten_of_nothing_is_zero(shift_mean):
    out = whiten(np.full((2, 3), np.nan), np.zeros((2, 3), bool), shift_mean)
    np.testing.assert_array_equal(out, np.zeros((2, 3)))


def test_whiten_of_one_token_or_of_equal_tokens_is_zero():
    one = np.array([[5.0, np.nan]])
    np.testing.assert_array_equal(whiten(one, np.array([[True, False]])), [[0.0, 0.0]])
    np.testing.assert_array_equal(whiten(np.full((2, 2), 0.5), np.ones((2, 2), bool)), 0.0)


@pytest.mark.parametrize("shift_mean", [True, False])
def test_padding_changes_nothing(ragged, shift_mean):
    x, mask = ragged
    wide_x = np.pad(x, ((0, 1), (0, 5)), constant_values=np.nan)
    wide_mask = np.pad(mask, ((0, 1), (0, 5)))
    out = np.asarray(whiten(wide_x, wide_mask, shift_mean))
    np.testing.assert_allclose(out[:B, :T], whiten(x, mask, shift_mean), rtol=1e-5, atol=1e-6)
    assert not out[B:].any() and not out[:, T:].any()


def test_gradients_are_finite_and_zero_off_the_mask(ragged):
    x, mask = ragged

    def weighted(x):
        return jnp.sum(whiten(x, mask) * jnp.arange(T))

    gradient = np.asarray(jax.grad(weighted)(jnp.float32(x)))
    assert np.isfinite(gradient).all() and gradient[mask].any()
    np.testing.assert_array_equal(gradient[~mask], 0.0)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(-10, 10, width=16), min_size=6, max_size=6),
    st.floats(0.5, 8.0),
    st.floats(-8.0, 8.0),
)
def test_whitening_undoes_scale_and_shift(values, scale, shift):
    x, mask = np.array([values]), np.ones((1, 6), bool)
    if x.std() < 0.1:
        return
    np.testing.assert_allclose(whiten(scale * x + shift, mask), whiten(x, mask), atol=1e-3)
