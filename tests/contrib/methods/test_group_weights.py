"""Rewards and weights in a group, compared with the authors' formulas."""

import numpy as np

from vinejax.contrib.methods.equations.group_weights import decoupled_weights, unlikely_rewards
from vinejax.rl.advantages import group_advantages

# --- unlikely_rewards


def test_the_likelier_of_the_right_ones_earn_less():
    rewards = unlikely_rewards([1, 1, 0, 1], [-0.1, -0.5, -0.3, -0.9], 0.25)
    np.testing.assert_allclose(rewards, [0.8125, 0.9375, 0, 1], atol=1e-7)
    advantages = group_advantages(rewards, np.zeros(4, np.int32), "grpo", ddof=1, eps=1e-6)
    expected = [0.268866, 0.537732, -1.478762, 0.672165]
    np.testing.assert_allclose(advantages, expected, atol=2e-6)


def test_without_a_part_to_lose_rewards_stay():
    assert unlikely_rewards([0.5, 1.0], [-1.0, -2.0], 0.0).tolist() == [0.5, 1.0]


# --- decoupled_weights


def test_right_by_length_and_wrong_by_likelihood():
    found = decoupled_weights(
        [-0.2, -0.4, -0.3, -0.9], [True, True, False, False], np.array([1, 3, 2, 4]) / 5, 0.1, 1.0
    )
    np.testing.assert_allclose(found, [0.982014, 0.017986, -0.645656, -0.354344], atol=2e-6)


def test_a_group_of_one_kind_weighs_nothing():
    for kind in (True, False):
        assert not decoupled_weights([-0.2, -0.4], [kind] * 2, [0.1, 0.2], 0.1, 1.0).any()


def test_tiny_temperatures_do_not_overflow():
    found = decoupled_weights([-0.2, -9.0, -0.3], [True, False, False], [0.5, 0.1, 0.1], 1e-4, 1e-4)
    np.testing.assert_allclose(found, [1.0, 0.0, -1.0], atol=1e-12)
