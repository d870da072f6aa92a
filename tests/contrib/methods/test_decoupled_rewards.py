"""GDPO's advantages against an oracle in loops, and the rewards that it takes from solutions."""

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods

from vinejax.contrib.methods.equations.decoupled_rewards import decoupled_advantages
from vinejax.contrib.methods.gdpo import weighted_rewards
from vinejax.rl.advantages import group_advantages

NAN = float("nan")
GROUPS = np.array([5, 2, 5, 2, 5, 2, 5, 9])  # interleaved; the last is a group of one


def oracle(rewards: np.ndarray, groups: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The equations of the paper, entry by entry."""
    summed = []
    for i, row in enumerate(rewards):
        total, is_judged = 0.0, False
        for n, reward in enumerate(row):
            if not np.isnan(reward):
                of_group = [rewards[j, n] for j in range(len(rewards)) if groups[j] == groups[i]]
                of_group = [x for x in of_group if not np.isnan(x)]
                mean = sum(of_group) / len(of_group)
                squares = sum((x - mean) ** 2 for x in of_group)
                std = (squares / max(len(of_group) - 1, 1)) ** 0.5
                total += weights[n] * (reward - mean) / (std + 1e-4)
                is_judged = True
        summed.append(total if is_judged else NAN)
    known = [x for x in summed if not np.isnan(x)]
    mean = sum(known) / len(known)
    std = (sum((x - mean) ** 2 for x in known) / (len(known) - 1)) ** 0.5
    return np.array([0.0 if np.isnan(x) else (x - mean) / (std + 1e-4) for x in summed])


def test_the_equations_entry_by_entry():
    rng = np.random.default_rng(0)
    rewards = rng.normal(0, [1.0, 100.0, 0.01], (8, 3))
    rewards[[0, 3, 5], [1, 2, 1]] = NAN
    rewards[6] = NAN  # no reward judges this solution
    weights = np.array([1.0, 0.5, 2.0])
    found = decoupled_advantages(rewards, GROUPS, weights)
    np.testing.assert_allclose(found, oracle(rewards, GROUPS, weights), atol=1e-9)
    assert found[6] == 0.0


def test_combinations_that_grpo_confuses_stay_apart():
    """In both groups one solution earns none of two rewards; the other earns one, or both."""
    rewards = np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    groups, weights = np.array([0, 0, 1, 1]), np.ones(2)
    of_sum = np.asarray(group_advantages(rewards.sum(axis=1), groups, "grpo", ddof=1, eps=1e-4))
    assert abs(of_sum[1] - of_sum[3]) < 1e-3
    found = decoupled_advantages(rewards, groups, weights)
    # a = [-z, z, -2z, 2z] with z = 1/sqrt(2), whose std over the batch is sqrt(5/3).
    np.testing.assert_allclose(found, np.array([-1, 1, -2, 2]) / 2 / (5 / 6) ** 0.5, atol=2e-4)
    np.testing.assert_allclose(found, oracle(rewards, groups, weights), atol=1e-12)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_the_scale_of_a_reward_does_not_count(scale: float):
    rewards = np.random.default_rng(1).normal(0, 1, (8, 2))
    found = decoupled_advantages(rewards * [1.0, scale], GROUPS, np.ones(2))
    expected = decoupled_advantages(rewards, GROUPS, np.ones(2))
    np.testing.assert_allclose(found, expected, atol=0.15 if scale < 1 else 1e-3)


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3])
def test_flat_groups_are_exactly_0(value: float):
    rewards = np.random.default_rng(2).normal(0, 1, (8, 2))
    rewards[GROUPS == 5] = value
    found = decoupled_advantages(rewards, GROUPS, np.ones(2))
    assert not found[GROUPS == 5].any() and not found[7] and found[GROUPS == 2].all()
    assert not decoupled_advantages(np.full((8, 2), value), GROUPS, np.ones(2)).any()


def test_the_rewards_of_solutions():
    """Of functions that judge or not, of a response that was cut, and of steps."""
    cfg = methods.config("gdpo", reward={"functions": ("task", "math.sqrt"), "weights": (2, 0.5)})
    judged = cases.episode([1], [2, 3], reward=5.0, reward_parts={"task": 1.0, "sqrt": 6.0})
    partly = cases.episode([1], [2, 3], reward=2.0, reward_parts={"task": 1.0, "task/seen": 3.0})
    cut = cases.episode([1], [2, 3], reward=-0.5)
    rewards, weights = weighted_rewards([judged, partly, cut], cfg)
    np.testing.assert_array_equal(rewards, [[1.0, 6.0], [1.0, NAN], [-0.5, -0.5]])
    assert weights.tolist() == [2.0, 0.5]
    stepped = cases.episode([1], [2, 3], reward=1.0, step_ends=[1, 2], step_rewards=[0.25, 0.5])
    rewards, weights = weighted_rewards([stepped], methods.config("gdpo"))
    assert rewards.tolist() == [[1.0, 0.75]] and weights.tolist() == [1.0, 1.0]
