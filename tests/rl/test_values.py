"""Monte Carlo values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import rl_oracles as oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from vinejax.rl.values import explained_variance, mc_values, returns_to_go

B, C, M = 3, 4, 5


def ragged_returns(seed, dtype=np.float32):
    """Random returns, NaN past the counts. State (0, 0) has no rollout, and (0, 1) has all M."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, M + 1, (B, C))
    counts[0, :2] = 0, M
    returns = rng.normal(size=(B, C, M)).astype(dtype)
    return np.where(np.arange(M) < counts[..., None], returns, np.nan), counts


def test_mc_values_match_the_loop():
    for seed in range(5):
        returns, counts = ragged_returns(seed)
        values = mc_values(returns, counts)
        assert values.dtype == jnp.float32
        np.testing.assert_allclose(values, oracle.mc_values(returns, counts), rtol=1e-5, atol=1e-6)


def test_a_state_without_rollouts_is_worth_zero():
    np.testing.assert_array_equal(mc_values(np.full((1, 2, 3), np.nan), np.zeros((1, 2), int)), 0.0)


def test_integer_and_bool_returns():
    returns = np.array([[[1, 0, 1, 1]]])
    for dtype in (np.int32, np.int8, np.uint8, bool, np.float64, np.float16):
        assert mc_values(returns.astype(dtype), np.array([[4]])) == 0.75


def test_fractions_are_not_truncated():
    assert mc_values(np.array([[[0.25, 0.5, 9.0]]]), np.array([[2]])) == 0.375


def test_more_padding_changes_nothing():
    returns, counts = ragged_returns(1)
    wide_returns = np.pad(returns, ((0, 1), (0, 2), (0, 3)), constant_values=np.inf)
    wide = np.asarray(mc_values(wide_returns, np.pad(counts, ((0, 1), (0, 2)))))
    np.testing.assert_allclose(wide[:B, :C], mc_values(returns, counts), rtol=1e-6)
    assert not wide[B:].any() and not wide[:, C:].any()


def test_gradient_is_one_over_count():
    returns, counts = ragged_returns(2)
    gradient = jax.grad(lambda r: mc_values(r, counts).sum())(jnp.float32(returns))
    is_rollout = np.arange(M) < counts[..., None]
    expected = np.where(is_rollout, 1 / np.maximum(counts, 1)[..., None], 0.0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=M, max_size=M), st.integers(1, M))
def test_the_value_is_between_the_returns_and_their_order_is_irrelevant(returns, count):
    def value(taken):
        row = np.full(M, np.nan)
        row[:count] = taken
        return float(mc_values(row[None, None], np.array([[count]]))[0, 0])

    taken = returns[:count]
    assert min(taken) <= value(taken) <= max(taken)
    assert value(taken) == value(taken[::-1])


# --- returns_to_go


def test_returns_to_go_by_hand():
    """Row c of the matrix has the discounts γ^(i-c) of the rewards from step c on."""
    discounts = np.array([[1, 0.5, 0.25], [0, 1, 0.5], [0, 0, 1]])
    rewards = [1.0, -2.0, 4.0]
    np.testing.assert_array_equal(returns_to_go(rewards, 0.5), discounts @ rewards)
    assert returns_to_go([], 0.5).shape == (0,)


# --- explained_variance


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.0, 1.0, 1.0], 1.0),
        ([5.0, 5.0, 6.0, 6.0], 1.0),  # a constant error is not seen
        ([0.5, 0.5, 0.5, 0.5], 0.0),
        ([0.25, 0.25, 0.75, 0.75], 0.75),
        ([1.0, 1.0, 0.0, 0.0], -3.0),
        ([0.0, 1.0, 0.0, 1.0], -1.0),
    ],
)
def test_explained_variance_by_hand(values: list[float], expected: float):
    returns = np.array([0.0, 0.0, 1.0, 1.0], np.float32)
    found = explained_variance(np.array(values, np.float32), returns)
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("returns", [[], [1.0], [0.0, 0.0], [0.1, 0.1, 0.1]])
def test_equal_returns_have_no_explained_variance(returns: list[float]):
    assert explained_variance(np.zeros(len(returns)), np.array(returns)) is None


@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_returns_that_are_equal_but_for_rounding_have_none(outcome: float):
    """As those of a critic with λ = 1 when all solutions earn the same: A + V in float32."""
    values = np.random.default_rng(0).normal(0, 1.5, (4, 2048)).astype(np.float32)
    after = np.append(values[:, 1:], np.full((4, 1), outcome, np.float32), axis=1)
    errors = (after - values)[:, ::-1]
    returns = np.cumsum(errors, axis=1, dtype=np.float32)[:, ::-1] + values
    assert 0 < np.ptp(returns) < 1e-4 and explained_variance(values, returns) is None
