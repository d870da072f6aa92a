"""Advantages over solutions that share a beginning, by hand and against loops over all pairs."""

import numpy as np
import pytest
from helpers.contrib import tree_oracles as oracle

from vinejax.contrib.methods.equations.shared_starts import (
    ancestor_advantages,
    fork_differences,
    two_level_advantages,
)

TWO_BY_TWO = [[1, 3], [1, 4], [2, 5], [2, 6]]
TREES = [oracle.random_tree(seed) for seed in range(300)]


# --- ancestor_advantages ---


@pytest.mark.parametrize(
    ("rewards", "weighting", "expected"),
    [
        ([1.0, 0.0, 0.0, 0.0], "average", [0.625, -0.375, -0.125, -0.125]),
        ([1.0, 0.0, 0.0, 0.0], "group_size", [0.6667, -0.3333, -0.1667, -0.1667]),
        ([1.0, 1.0, 0.0, 1.0], "average", [0.125, 0.125, -0.625, 0.375]),
        ([1.0, 1.0, 0.0, 1.0], "group_size", [0.1667, 0.1667, -0.6667, 0.3333]),
    ],
)
def test_ancestors_by_hand(rewards, weighting, expected):
    out = ancestor_advantages(TWO_BY_TWO, rewards, weighting)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, expected, atol=5e-5)


def test_a_leaf_near_the_root_is_compared_as_far_as_it_goes():
    """The first leaf with all three alone; the others with all three and with each other."""
    out = ancestor_advantages([[1], [2, 3], [2, 4]], [1.0, 1.0, 0.0])
    np.testing.assert_allclose(out, [1 / 3, (1 / 3 + 1 / 2) / 2, (-2 / 3 - 1 / 2) / 2], atol=1e-6)


@pytest.mark.parametrize("weighting", ["average", "group_size"])
def test_the_only_leaf_keeps_its_reward(weighting):
    assert ancestor_advantages([[1, 2, 3]], [0.5], weighting).tolist() == [0.5]


@pytest.mark.parametrize("weighting", ["average", "group_size"])
def test_ancestors_match_the_loop_over_depths(weighting):
    for tree in TREES:
        out = ancestor_advantages(tree.paths, tree.rewards, weighting)
        expected = oracle.ancestor_advantages(tree, weighting)
        np.testing.assert_allclose(out, expected, rtol=0, atol=1e-6)


def test_an_unknown_weighting_is_refused():
    with pytest.raises(ValueError, match="'equal': use 'average' or 'group_size'"):
        ancestor_advantages([[1]], [1.0], "equal")


# --- two_level_advantages ---


def test_two_levels_by_hand():
    out = two_level_advantages([1.0, 0.0, 0.0, 0.0], [0, 0, 1, 1])
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, [2.2071, -1.2071, -0.5, -0.5], atol=5e-5)


def test_a_leaf_alone_in_its_tree_keeps_its_reward_there():
    out = two_level_advantages([1.0, 0.0, 0.0], [4, -1, -1])
    in_prompt = np.array([2, -1, -1]) / 3 / np.sqrt(1 / 3)
    np.testing.assert_allclose(out, in_prompt + [1, 0, 0], atol=1e-5)
    np.testing.assert_allclose(two_level_advantages([0.5], [0]), [1.0], atol=2e-6)


def test_two_levels_match_the_loop():
    rng = np.random.default_rng(0)
    for i in range(200):
        count = int(rng.integers(1, 12))
        trees = rng.integers(-2, 4, count).tolist()
        rewards = rng.choice(oracle.REWARDS[i % 3], count).tolist()
        out = two_level_advantages(rewards, trees)
        expected = [oracle.two_level_advantage(rewards, trees, j) for j in range(count)]
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
        order = rng.permutation(count).tolist()
        renamed = [10 - 3 * trees[j] for j in order]
        permuted = two_level_advantages([rewards[j] for j in order], renamed)
        np.testing.assert_array_equal(permuted, out[order])


def test_two_levels_of_equal_rewards_are_exactly_zero():
    assert not two_level_advantages([0.1] * 7, [0, 0, 0, 1, 1, 1, 1]).any()
    assert two_level_advantages([], []).shape == (0,)


@pytest.mark.parametrize("trees", [[0], [0, 0, 0]])
def test_a_tree_for_each_leaf_is_asked_for(trees):
    with pytest.raises(ValueError):
        two_level_advantages([1.0, 0.0], trees)


# --- fork_differences ---


def test_forks_by_hand():
    responses = [[1, 2, 3], [1, 2, 4], [1, 5, 6], [1, 5, 7]]
    out = fork_differences(responses, [1.0, 0.0, 0.0, 0.0])
    assert out == [[0.0, 0.25, 0.5], [0.0, 0.25, -0.5], [0.0, -0.25, 0.0], [0.0, -0.25, 0.0]]


def test_a_prefix_of_another_solution_shares_its_value():
    """Both pass through (1, 2); what the longer one loses is in its own last token."""
    assert fork_differences([[1, 2], [1, 2, 3]], [1.0, 0.0]) == [[0.0, 0.0], [0.0, 0.0, -0.5]]


def test_equal_solutions_with_other_rewards_share_their_mean():
    out = fork_differences([[1], [1], [2], []], [1.0, 0.0, 0.0, 1.0])
    assert out == [[0.0], [0.0], [-0.5], []]


def random_group(seed):
    """Solutions over two or three tokens, so that many share a beginning, and their rewards."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 9))
    letters = int(rng.integers(2, 4))
    responses = [rng.integers(0, letters, rng.integers(0, 7)).tolist() for _ in range(count)]
    return responses, rng.choice(oracle.REWARDS[seed % 3], count).tolist()


def test_forks_match_the_loop_over_prefixes():
    for seed in range(300):
        responses, rewards = random_group(seed)
        out = fork_differences(responses, rewards)
        for i, row in enumerate(out):
            expected = oracle.fork_differences(responses, rewards, i)
            np.testing.assert_allclose(row, expected, atol=1e-12)
            containing = [s[: len(responses[i])] == responses[i] for s in responses]
            whole = np.mean(np.array(rewards)[containing])
            np.testing.assert_allclose(sum(row), whole - np.mean(rewards), atol=1e-12)


def test_neither_the_order_nor_the_ids_of_tokens_change_forks():
    for seed in range(100):
        responses, rewards = random_group(seed)
        out = fork_differences(responses, rewards)
        order = np.random.default_rng(seed).permutation(len(out)).tolist()
        renamed = [[9 - 2 * token for token in responses[i]] for i in order]
        permuted = fork_differences(renamed, [rewards[i] for i in order])
        assert permuted == [out[i] for i in order]


def test_where_nobody_forks_the_difference_is_exactly_zero():
    rewards = [0.1, 0.7, 0.2]
    out = fork_differences([[1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 3, 7]], rewards)
    assert [row[:2] for row in out] == [[0.0, 0.0]] * 3
    assert out[1][3] == 0.0 != out[1][2]
    same = fork_differences([[1, 2], [1, 3], [2], [1, 2, 3]], [0.1] * 4)
    assert not any(map(any, same))


def test_forks_refuse_other_numbers_of_rewards():
    assert fork_differences([], []) == []
    with pytest.raises(ValueError, match="2 responses have 1 rewards"):
        fork_differences([[1], [2]], [1.0])
