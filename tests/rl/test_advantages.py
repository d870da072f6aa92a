"""Advantages of steps, tokens and groups, and GAE."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import rl_oracles as oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from vinejax.rl.advantages import (
    gae,
    group_advantages,
    step_advantages,
    token_advantages,
)

B, C, T = 4, 5, 12
NUM_STEPS = np.array([5, 2, 0, 1])
IS_STEP = np.arange(C) < NUM_STEPS[:, None]
NAN = np.nan


def ragged_values(seed=0):
    values = np.random.default_rng(seed).random((B, C)).astype(np.float32)
    return np.where(IS_STEP, values, NAN)


# --- step_advantages ---


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0, np.float64(0.5)])
def test_step_advantages_match_the_loop(gamma):
    rng = np.random.default_rng(1)
    values, final = ragged_values(), np.array([1.0, 0.75, NAN, -2.0])
    per_step = np.where(IS_STEP, rng.normal(size=(B, C)), NAN)
    for rewards in (final, per_step):
        out = step_advantages(values, rewards, NUM_STEPS, gamma)
        expected = oracle.step_advantages(values, rewards, NUM_STEPS, gamma)
        assert out.dtype == jnp.float32
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_steps_telescope_to_reward_less_first_value():
    values, rewards = ragged_values(), np.array([1.0, 0.75, 0.0, 0.5])
    total = np.asarray(step_advantages(values, rewards, NUM_STEPS)).sum(axis=1)
    np.testing.assert_allclose(total[[0, 1, 3]], (rewards - values[:, 0])[[0, 1, 3]], atol=1e-6)


def test_one_step_is_reward_less_value():
    out = step_advantages(np.array([[0.25, NAN]]), np.array([1.0]), np.array([1]), 0.5)
    np.testing.assert_array_equal(out, [[0.75, 0.0]])


def test_no_steps_give_zeros():
    out = step_advantages(np.full((2, 3), NAN), np.full(2, NAN), np.zeros(2, int))
    np.testing.assert_array_equal(out, np.zeros((2, 3)))
    assert step_advantages(np.zeros((2, 0)), np.ones(2), np.zeros(2, int)).shape == (2, 0)


def test_back_filled_values_leave_no_advantage():
    """States past `max_states` have V = R, so that only the step into them gets credit."""
    out = step_advantages(np.array([[0.25, 1.0, 1.0]]), np.array([1.0]), np.array([3]))
    np.testing.assert_array_equal(out, [[0.75, 0.0, 0.0]])


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int32, np.int64])
def test_integer_rewards(dtype):
    rewards = np.array([1, 0]).astype(dtype)
    out = step_advantages(np.full((2, 2), 0.25), rewards, np.array([2, 2]))
    np.testing.assert_array_equal(out, [[0.0, 0.75], [0.0, -0.25]])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, jnp.bfloat16])
def test_fractional_rewards_stay_fractional(dtype):
    out = step_advantages(np.zeros((1, 2), int), np.array([0.75]).astype(dtype), np.array([2]))
    np.testing.assert_array_equal(out, [[0.0, 0.75]])


def test_more_steps_of_padding_change_nothing():
    values, rewards = ragged_values(), np.array([1.0, 0.75, 0.0, 0.5])
    wide_values = np.pad(values, ((0, 0), (0, 3)), constant_values=np.inf)
    wide = np.asarray(step_advantages(wide_values, rewards, NUM_STEPS))
    np.testing.assert_array_equal(wide[:, :C], step_advantages(values, rewards, NUM_STEPS))
    assert not wide[:, C:].any()


def test_step_gradients_ignore_padding():
    rewards = np.array([1.0, 0.75, NAN, 0.5])

    def loss(values):
        return jnp.sum(step_advantages(values, rewards, NUM_STEPS) * jnp.arange(1, C + 1))

    gradient = jax.grad(loss)(jnp.float32(ragged_values()))
    # Weights rise by one a step: V(s_c) enters step c with -1 and step c - 1 with +1.
    np.testing.assert_array_equal(gradient, np.where(IS_STEP, -1.0, 0.0))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(0, 1, width=32), min_size=C, max_size=C),
    st.floats(-1, 1, width=32),
    st.integers(1, C),
    st.floats(0, 1),
)
def test_discounted_steps_telescope(values, reward, n, gamma):
    out = step_advantages(np.array([values]), np.array([reward]), np.array([n]), gamma)
    total = sum(gamma**c * float(out[0, c]) for c in range(n))
    assert total == pytest.approx(gamma ** (n - 1) * reward - values[0], abs=1e-5)


# --- token_advantages ---


def test_token_advantages_match_the_loop():
    rng = np.random.default_rng(2)
    advantages = np.where(IS_STEP, rng.normal(size=(B, C)), NAN).astype(np.float32)
    step_ids = np.full((B, T), -1)
    step_ids[0, 2:12] = [0, 0, 1, 2, 2, 2, 3, 4, 4, 4]
    step_ids[1, 1:4] = [0, 1, 1]
    step_ids[3, :5] = 0
    out = token_advantages(advantages, step_ids)
    assert out.dtype == jnp.float32
    np.testing.assert_array_equal(out, oracle.token_advantages(advantages, step_ids))


def test_rows_without_response_are_zero():
    out = token_advantages(np.full((2, 3), NAN), np.full((2, 4), -1))
    np.testing.assert_array_equal(out, np.zeros((2, 4)))
    empty = token_advantages(np.zeros((2, 0)), np.full((2, 4), -1))
    np.testing.assert_array_equal(empty, np.zeros((2, 4)))


def test_token_gradient_counts_the_tokens_of_a_step():
    step_ids = np.array([[-1, 0, 0, 0, 1, -1]])
    gradient = jax.grad(lambda a: token_advantages(a, step_ids).sum())(jnp.array([[1.0, 2.0, NAN]]))
    np.testing.assert_array_equal(gradient, [[3.0, 1.0, 0.0]])


# --- group_advantages ---

GROUP_IDS = np.array([7, -1, 7, 999_999, -1, 7, -1, 7])  # all equal modulo 8


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_group_advantages_match_the_loop(kind):
    for seed in range(5):
        rewards = np.random.default_rng(seed).normal(size=8).astype(np.float32)
        out = group_advantages(rewards, GROUP_IDS, kind)
        expected = oracle.group_advantages(rewards, GROUP_IDS, kind)
        assert out.dtype == jnp.float32
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_group_advantages_by_hand():
    rewards, ids = np.array([1, 0, 0, 1, 1, 0]), np.array([0, 1, 0, 1, 1, 1])
    np.testing.assert_allclose(group_advantages(rewards, ids), [1, -1, -1, 1, 1, -1], rtol=1e-6)
    expected = [1, -2 / 3, -1, 2 / 3, 2 / 3, -2 / 3]
    np.testing.assert_allclose(group_advantages(rewards, ids, "rloo"), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1e-6, -1234.567])
def test_equal_rewards_are_exactly_zero(kind, reward):
    np.testing.assert_array_equal(group_advantages(np.full(7, reward), np.zeros(7, int), kind), 0.0)


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_a_group_of_one_is_zero(kind):
    out = group_advantages(np.array([0.9, 0.3, 5.0]), np.array([4, 5, 6]), kind)
    np.testing.assert_array_equal(out, np.zeros(3))


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_groups_do_not_see_each_other(kind):
    """A NaN in one group stays in that group, whose rows may be anywhere."""
    rewards = np.array([1.0, NAN, 0.0, 0.25])
    out = np.asarray(group_advantages(rewards, np.array([2, 9, 2, 2]), kind))
    alone = group_advantages(rewards[[0, 2, 3]], np.zeros(3, int), kind)
    np.testing.assert_allclose(out[[0, 2, 3]], alone, rtol=1e-6)


def test_grpo_has_unit_scale_and_rloo_mean_zero():
    rewards = np.random.default_rng(3).normal(5.0, 2.0, 8)
    grpo = np.asarray(group_advantages(rewards, GROUP_IDS, "grpo"))
    rloo = np.asarray(group_advantages(rewards, GROUP_IDS, "rloo"))
    for group in (7, -1):
        assert grpo[group == GROUP_IDS].mean() == pytest.approx(0.0, abs=1e-5)
        assert grpo[group == GROUP_IDS].std() == pytest.approx(1.0, abs=1e-5)
        assert rloo[group == GROUP_IDS].mean() == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_group_gradients_are_finite(kind):
    """Equal rewards have a deviation of 0, and a group of one leaves no degree of freedom."""
    ids = np.array([0, 0, 1, 1, 2])

    def first(rewards):
        return jnp.sum(group_advantages(rewards, ids, kind, ddof=1) * jnp.arange(5))

    gradient = np.asarray(jax.grad(first)(jnp.array([1.0, 0.25, 0.5, 0.5, 1.0])))
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[2:], 0.0)


def test_unknown_group_kind_names_the_allowed_ones():
    with pytest.raises(ValueError, match="'best'.*'grpo'.*'rloo'"):
        group_advantages(np.ones(2), np.zeros(2, int), "best")
    with pytest.raises(ValueError, match="unknown scale 'all': use 'group', 'batch' or 'none'"):
        group_advantages(np.ones(2), np.zeros(2, int), scale="all")


def test_scales_of_group_advantages():
    """As in TRL's `scale_rewards`, differences are from the mean of the group for any `scale`."""
    rewards, ids = np.array([1.0, 0.0, 0.0, 3.0, 1.0, 1.0]), np.array([0, 0, 0, 1, 1, 1])
    std = {"group": np.repeat([rewards[:3].std(ddof=1), rewards[3:].std(ddof=1)], 3),
           "batch": rewards.std(ddof=1), "none": 1 - 1e-4}  # fmt: skip
    less = rewards - np.repeat([rewards[:3].mean(), rewards[3:].mean()], 3)
    for scale, found in std.items():
        for kind in ("grpo", "mean", "rloo"):
            expected = less / (found + 1e-4) * (1.5 if kind == "rloo" else 1.0)
            advantages = group_advantages(rewards, ids, kind, ddof=1, eps=1e-4, scale=scale)
            np.testing.assert_allclose(advantages, expected, rtol=1e-5)
    flat = group_advantages(np.array([1.0, 1.0, 3.0, 0.0]), ids[1:5], "mean", scale="batch")
    assert not np.asarray(flat)[:2].any()


# --- gae ---


def packed_episodes(seed=4):
    """Rewards and values with NaN and inf off the mask; rows of 2, 1 (whole row), 0 and 3 runs."""
    rng = np.random.default_rng(seed)
    mask = np.zeros((B, T), bool)
    mask[0, 2:5] = mask[0, 7:11] = mask[1] = mask[3, :2] = mask[3, 3:4] = mask[3, 10:] = True
    rewards = np.where(mask, rng.normal(size=(B, T)), np.inf).astype(np.float32)
    values = np.where(mask, rng.random((B, T)), NAN).astype(np.float32)
    return rewards, values, mask


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95), (0.5, 0.0), (0.9, 1)])
def test_gae_matches_the_loop(gamma, lam):
    rewards, values, mask = packed_episodes()
    expected = oracle.gae(rewards, values, mask, gamma, lam)
    for out, loop in zip(gae(rewards, values, mask, gamma, lam), expected, strict=True):
        assert out.dtype == jnp.float32
        np.testing.assert_allclose(out, loop, rtol=1e-5, atol=1e-5)


def test_gae_of_rows_without_tokens_is_empty():
    empty = np.zeros((2, 0), np.float32)
    assert [x.shape for x in gae(empty, empty, empty.astype(bool), 1.0, 1.0)] == [(2, 0)] * 2


def test_gae_with_lambda_one_is_return_less_value():
    rewards, values, mask = packed_episodes()
    advantages, returns = gae(rewards, values, mask, 1.0, 1.0)
    for b in range(B):
        for start, end in oracle.runs(mask[b]):
            to_go = np.cumsum(rewards[b, start:end][::-1])[::-1]
            np.testing.assert_allclose(returns[b, start:end], to_go, atol=1e-5)
            less_value = to_go - values[b, start:end]
            np.testing.assert_allclose(advantages[b, start:end], less_value, atol=1e-5)


def test_gae_with_lambda_zero_is_the_td_error():
    rewards, values, mask = packed_episodes()
    advantages, _ = gae(rewards, values, mask, 0.9, 0.0)
    for b in range(B):
        for start, end in oracle.runs(mask[b]):
            after = np.append(values[b, start + 1 : end], 0.0)
            td = rewards[b, start:end] + 0.9 * after - values[b, start:end]
            np.testing.assert_allclose(advantages[b, start:end], td, atol=1e-6)


def test_packing_and_padding_change_nothing():
    rewards, values, mask = packed_episodes()
    packed = gae(rewards, values, mask, 0.99, 0.95)
    # The second run of row 0, alone in a row.
    alone = gae(rewards[:1, 7:11], values[:1, 7:11], mask[:1, 7:11], 0.99, 0.95)
    for in_row, by_itself in zip(packed, alone, strict=True):
        np.testing.assert_allclose(in_row[0, 7:11], by_itself[0], rtol=1e-6)


def test_gae_of_integer_rewards():
    advantages, returns = gae(
        np.array([[0, 0, 1]]), np.full((1, 3), 0.25), np.ones((1, 3), bool), 1, 1
    )
    np.testing.assert_array_equal(advantages, np.full((1, 3), 0.75))
    np.testing.assert_array_equal(returns, np.ones((1, 3)))


def test_gae_of_one_token_a_step_is_the_step_advantage():
    """With λ = 0 and steps of one token, GAE and `step_advantages` agree."""
    values, rewards = ragged_values(), np.random.default_rng(5).normal(size=(B, C))
    advantages, _ = gae(rewards, values, IS_STEP, 0.9, 0.0)
    expected = step_advantages(values, rewards, NUM_STEPS, 0.9)
    np.testing.assert_allclose(advantages, expected, rtol=1e-6)


def test_gae_gradients_ignore_what_is_off_the_mask():
    rewards, values, mask = packed_episodes()

    def loss(values, rewards):
        return sum(jnp.sum(x * jnp.arange(T)) for x in gae(rewards, values, mask, 0.99, 0.95))

    for gradient in jax.grad(loss, argnums=(0, 1))(jnp.float32(values), jnp.float32(rewards)):
        gradient = np.asarray(gradient)
        assert np.isfinite(gradient).all() and gradient[mask].any()
        np.testing.assert_array_equal(gradient[~mask], 0.0)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.booleans(), min_size=T, max_size=T),
    st.lists(st.floats(-1, 1, width=32), min_size=2 * T, max_size=2 * T),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_gae_on_any_mask(mask, numbers, gamma, lam):
    mask = np.array([mask])
    rewards, values = np.where(mask, np.array(numbers).reshape(2, 1, T), NAN)
    expected = oracle.gae(rewards, values, mask, gamma, lam)
    for out, loop in zip(gae(rewards, values, mask, gamma, lam), expected, strict=True):
        np.testing.assert_allclose(out, loop, atol=1e-5)


def test_results_stay_float32_with_64_bit_types_on():
    """A user's `jax_enable_x64` must not change results, nor break the scan."""
    values, num_steps, half = ragged_values().astype(np.float64), NUM_STEPS, np.float64(0.5)
    with jax.enable_x64(True):
        steps = step_advantages(values, np.ones(B), num_steps, half)
        tokens, _ = gae(np.ones((B, C)), values, IS_STEP, half, half)
        groups = group_advantages(values[:, 0], np.arange(B) % 2)
    assert {steps.dtype, tokens.dtype, groups.dtype} == {jnp.float32.dtype}
