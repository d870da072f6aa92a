"""Rewards and weights in a group, compared with the authors' formulas and with loops."""

import math

import numpy as np

from vinejax.contrib.methods.equations.group_weights import (
    decoupled_weights,
    preference_weights,
    unlikely_rewards,
)
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


# --- preference_weights


def test_preferences_by_hand():
    ratios = np.array([-0.5, -0.8, -0.6, -1.2]) - [-0.6, -0.7, -0.6, -1.0]
    found = preference_weights([1, 1, 2, 3], [0] * 4, ratios, 0.1, 2.5)
    np.testing.assert_allclose(found, [0.04875, 0.05, -0.0401, -0.05865], atol=2e-6)


def preference_loss(levels, groups, ratios, beta, anisotropy) -> float:
    losses = []
    for i, level in enumerate(levels):
        for j, other in enumerate(levels):
            if groups[i] == groups[j] and level < other:
                h = beta * (anisotropy if level == 1 else 1.0) * (ratios[i] - ratios[j])
                losses.append(math.log1p(math.exp(-h)))
    return float(np.mean(losses)) if losses else 0.0


def test_preferences_are_minus_the_gradient():
    """The weights equal central differences of a loop over pairs."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        levels, groups = rng.integers(1, 4, 7), rng.integers(0, 3, 7)
        ratios, e = rng.normal(size=7), 1e-5
        found = preference_weights(levels, groups, ratios, 0.7, 2.5)
        for i, moved in enumerate(np.eye(7) * e):
            above = preference_loss(levels, groups, ratios + moved, 0.7, 2.5)
            below = preference_loss(levels, groups, ratios - moved, 0.7, 2.5)
            np.testing.assert_allclose(found[i], (below - above) / (2 * e), atol=1e-8)


def test_equal_levels_give_nothing():
    assert not preference_weights([2, 2], [0, 0], [1.0, -1.0], 0.1, 2.5).any()
    assert not preference_weights([1, 2], [0, 1], [1.0, -1.0], 0.1, 2.5).any()
