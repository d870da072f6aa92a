"""Values and standard errors from the returns at states."""

import dataclasses
import math

import numpy as np
import pytest
from helpers.vine_cases import RIGHT, WRONG, config, episode, fill, values_of

import vinejax
from vinejax.credit.estimate import (
    back_filled,
    estimates,
    interpolated,
    mean_values,
    standard_errors,
)

STEPS = [0.5, 0.0, 0.25, 0.0, 1.0]


def test_means_of_equal_counts_are_numpys_bit_for_bit():
    rng = np.random.default_rng(0)
    for num_states, k in ((1, 1), (5, 3), (16, 4), (17, 9), (40, 8)):
        returns = rng.integers(0, 2, (num_states, k)).astype(np.float32)
        found = mean_values(returns.tolist())
        assert found.dtype == np.float32 and found.shape == (num_states,)
        np.testing.assert_array_equal(found, returns.mean(axis=1, dtype=np.float32))
        reals = rng.normal(size=(num_states, k)).astype(np.float32)
        by_rl = vinejax.mc_values(reals[None], np.full((1, num_states), k, np.int32))
        np.testing.assert_array_equal(mean_values(reals.tolist()), np.asarray(by_rl)[0])


def test_means_of_unequal_counts():
    returns = [[1.0], [], [0.0, 1.0, 0.5], [0.25] * 7]
    np.testing.assert_array_equal(mean_values(returns), [1.0, 0.0, 0.5, 0.25])
    assert mean_values([]).shape == (0,) and mean_values([[], []]).tolist() == [0.0, 0.0]


def test_the_default_values_are_those_of_mc_values_bit_for_bit():
    """The method has K = 9 continuations at every state."""
    cfg = config(k=9)
    steps = (*RIGHT[:1], *WRONG[1:])
    episodes = [episode(RIGHT), episode(WRONG, reward=0.0), episode(steps, reward=0.0)]
    answers = "455445444"
    filled, _ = fill(episodes, cfg, lambda _, k: (f"\n#### {answers[k]}", "eos"))
    for one in filled:
        returns = np.array([[c.reward for c in group] for group in one.continuations])
        expected = vinejax.mc_values(returns[None], np.full((1, len(returns)), 9, np.int32))
        np.testing.assert_array_equal(values_of(one), np.asarray(expected)[0])
        assert values_of(one).dtype == np.float32 and (values_of(one) == np.float32(6 / 9)).all()


def test_a_state_between_two_counts_what_was_earned_before_it():
    """V + earlier rewards is 0.5 before step 1 and 0.75 before step 3, so 0.625 before step 2."""
    (found,) = estimates([[[1.0, 0.0], [], [0.5]]], [0], [[0.25, 0.0, 1.0]], 1.0)
    np.testing.assert_allclose(found.values, [0.5, 0.375, 0.5])
    assert found.counts.tolist() == [2, 0, 1]


def test_standard_errors_by_hand():
    found = standard_errors([[0.0, 1.0], [1.0, 1.0, 1.0], [], [0.5]])
    typical = (2 * 0.25) / 6  # mean squared deviation of all returns
    expected = [
        math.sqrt((0.5 + typical) / 3 / 2),
        math.sqrt(typical / 4 / 3),
        0.0,
        math.sqrt(typical / 2 / 1),
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == np.float32
    assert not standard_errors([[], [1.0, 1.0]]).any() and standard_errors([]).shape == (0,)


def test_no_error_is_known_where_no_state_has_two_returns():
    found = standard_errors([[0.0], [], [1.0]])
    assert np.isnan(found).tolist() == [True, False, True] and found[1] == 0
    (one,), _ = fill([episode(RIGHT)], config(k=1), lambda _, k: (f"{k}", "eos"))
    assert one.value_errors is not None and np.isnan(one.value_errors).all()


def test_an_episode_has_the_errors_of_its_states():
    (one,), _ = fill([episode(RIGHT)], config(k=3, max_states=0), lambda _, k: (f"{k}", "eos"))
    assert one.value_errors is not None and one.value_errors.shape == (2,)
    assert not one.value_errors.any()  # all continuations failed, and no other return exists
    texts = ["\n#### 4", "\n#### 5", "\n#### 5"]
    (one,), _ = fill([episode(RIGHT)], config(k=3, max_states=0), lambda _, k: (texts[k], "eos"))
    assert one.value_errors is not None and one.value_errors[1] == 0
    variance = 3 * (2 / 9)
    np.testing.assert_allclose(one.value_errors[0], math.sqrt((variance + 2 / 9) / 4 / 3))


def test_values_between_sampled_states_by_hand():
    means = np.array([0.25, 9.0, 9.0, 0.75, 9.0], np.float32)
    is_sampled = np.array([True, False, False, True, False])
    earned = np.zeros(5)
    found = interpolated(means, is_sampled, earned, total=0.25)
    np.testing.assert_allclose(found, [0.25, 0.25 + 0.5 / 3, 0.25 + 1.0 / 3, 0.75, 0.5])
    # With step rewards the line is that of the value plus the rewards before the state.
    earned = np.cumsum([0.0, *STEPS])
    found = interpolated(means, is_sampled, earned[:5], total=float(earned[-1]))
    u = np.interp(range(6), [0, 3, 5], [0.25, 1.5, 1.75])
    np.testing.assert_allclose(found, (u - earned)[:5], atol=1e-7)


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.3])
def test_back_filled_states_have_no_advantage(gamma: float):
    """The advantage is exactly 0 without a discount, and 0 within rounding with one."""
    rng = np.random.default_rng(2)
    for first in (0, 1, 3):
        rewards = rng.normal(size=9).astype(np.float32)
        values = rng.normal(size=4).astype(np.float32)
        filled = back_filled(values, first, rewards, gamma)
        assert filled.dtype == np.float32
        np.testing.assert_array_equal(filled[first : first + 4], values)
        advantages = np.asarray(
            vinejax.step_advantages(
                filled[None], rewards[None], np.array([9], np.int32), float(gamma)
            )
        )[0]
        sampled = np.arange(first, first + 4)
        assert np.abs(advantages[sampled]).min() > 1e-3
        rest = np.delete(advantages, sampled)
        np.testing.assert_allclose(rest, 0.0, atol=0.0 if gamma == 1.0 else 1e-6)


def test_estimates_of_several_solutions():
    """Counts, values and errors of two solutions; the first has no state at its first step."""
    returns = [[[1.0, 0.0], []], [[0.5]], []]
    rewards = [[0.0, 0.0, 0.0, 1.0], [0.25], [0.0, 0.5]]
    found = estimates(returns, first=[1, 0, 0], rewards=rewards, gamma=1.0)
    np.testing.assert_allclose(found[0].values, [0.5, 0.5, 0.75, 1.0])
    assert found[0].counts.tolist() == [0, 2, 0, 0] and found[1].counts.tolist() == [1]
    assert (found[0].errors > 0).tolist() == [False, True, False, False]
    np.testing.assert_array_equal(found[1].values, [0.5])
    np.testing.assert_array_equal(found[2].values, [0.5, 0.5])
    assert not found[2].counts.any()
    # U is V plus 0.5 at both states: 1 at the first, and 1.375 halfway to the total of 1.75.
    (late,) = estimates([[[1.0, 0.0], []]], [1], [[0.5, 0.0, 0.25, 1.0]], gamma=1.0)
    np.testing.assert_allclose(late.values, [1.0, 0.5, 0.875, 1.0])
    assert late.is_state.tolist() == [False, True, True, False]


def test_a_value_does_not_know_other_problems():
    one = dataclasses.replace(episode(RIGHT), reward=0.5)
    alone, _ = fill([one], config(k=4))
    both, _ = fill([one, episode(WRONG, reward=0.0)], config(k=4))
    np.testing.assert_array_equal(values_of(alone[0]), values_of(both[0]))
