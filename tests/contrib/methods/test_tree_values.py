"""Values of nodes and credit of edges, compared with numbers by hand and with linked trees."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from helpers.contrib import tree_oracles as oracle
from helpers.paths import REPO

from vinejax.contrib.methods.equations.shared_starts import ancestor_advantages
from vinejax.contrib.methods.equations.tree_values import (
    edge_advantages,
    is_informative_edge,
    node_values,
    treerl_rewards,
)

# Two levels of two: nodes 1 and 2 below the root, 3 and 4 below 1, 5 and 6 below 2.
TWO_BY_TWO = [[1, 3], [1, 4], [2, 5], [2, 6]]
TREES = [oracle.random_tree(seed) for seed in range(300)]
RULES = [
    edge_advantages,
    partial(edge_advantages, kind="grpo"),
    is_informative_edge,
    ancestor_advantages,
    partial(ancestor_advantages, weighting="group_size"),
    treerl_rewards,
]


def close(out, expected, atol=1e-6):
    assert len(out) == len(expected)
    for row, expected_row in zip(out, expected, strict=True):
        np.testing.assert_allclose(row, expected_row, rtol=0, atol=atol)


def of_nodes(tree, rule):
    """The number that the rule gives each node of a leaf's path, [L] lists."""
    return [[rule(node) for node in leaf.lineage()[1:]] for leaf in tree.leaves]


def test_the_random_trees_have_all_shapes():
    depths = [{len(path) for path in tree.paths} for tree in TREES]
    assert any(len(d) >= 4 for d in depths) and any(d == {5} for d in depths)
    assert {len(tree.leaves) for tree in TREES} >= {1, 2, 3, 10, 20}
    assert sum(len(tree.leaves) == 1 < len(tree.paths[0]) for tree in TREES) > 5  # no forks


# --- node_values, edge_advantages, is_informative_edge ---


def test_values_and_edges_by_hand():
    """SPO-tree's tree of two levels of two branches, with the leaves (1, 0) and (0, 0)."""
    rewards = [1.0, 0.0, 0.0, 0.0]
    values = node_values(TWO_BY_TWO, rewards)
    assert values == {None: 0.25, 1: 0.5, 2: 0.0, 3: 1.0, 4: 0.0, 5: 0.0, 6: 0.0}
    expected = [[0.25, 0.5], [0.25, -0.5], [-0.25, 0.0], [-0.25, 0.0]]
    assert edge_advantages(TWO_BY_TWO, rewards) == expected
    scaled = [[1.0, 1.0], [1.0, -1.0], [-1.0, 0.0], [-1.0, 0.0]]
    close(edge_advantages(TWO_BY_TWO, rewards, "grpo"), scaled)
    informative = [[True, True], [True, True], [True, False], [True, False]]
    assert is_informative_edge(TWO_BY_TWO, rewards) == informative


def test_a_value_is_a_mean_of_children_and_not_of_leaves():
    paths, rewards = [[1], [2, 3], [2, 4], [2, 5]], [1.0, 0.0, 0.0, 0.0]
    assert node_values(paths, rewards)[None] == 0.5


def test_values_and_edges_match_the_recursion():
    for tree in TREES:
        values = node_values(tree.paths, tree.rewards)
        nodes = {node for leaf in tree.leaves for node in leaf.lineage()[1:]}
        assert len(values) == len(nodes) + 1
        assert values[None] == pytest.approx(float(oracle.value(tree.root)), abs=1e-12)
        for node in nodes:
            assert values[node.number] == pytest.approx(float(oracle.value(node)), abs=1e-12)
        for kind in ("rloo", "grpo"):
            expected = of_nodes(tree, lambda node, kind=kind: oracle.edge_advantage(node, kind))
            close(edge_advantages(tree.paths, tree.rewards, kind), expected)


def test_edges_of_a_leaf_add_up_to_reward_less_value_of_the_prompt():
    for tree in TREES:
        edges = edge_advantages(tree.paths, tree.rewards)
        start = node_values(tree.paths, tree.rewards)[None]
        gains = [reward - start for reward in tree.rewards]
        np.testing.assert_allclose([sum(row) for row in edges], gains, atol=1e-12)


@pytest.mark.parametrize("k", [1, 4, 9])
def test_uninformative_edges_are_those_that_spo_drops_for_any_k(k):
    num_dropped = num_kept = 0
    for tree in TREES:
        kept = of_nodes(tree, lambda node: not oracle.is_dropped(node, k))
        assert is_informative_edge(tree.paths, tree.rewards) == kept
        num_kept += sum(map(sum, kept))
        num_dropped += sum(row.count(False) for row in kept)
    assert min(num_dropped, num_kept) > 500


# --- treerl_rewards ---


def test_treerl_by_hand():
    out = treerl_rewards(TWO_BY_TWO, [1.0, 0.0, 0.0, 0.0])
    expected = [[0.4714, 1.7643], [0.4714, -0.9024], [-0.4714, -0.4310], [-0.4714, -0.4310]]
    close(out, expected, atol=5e-5)


def test_treerl_inherits_a_missing_local_term():
    """With R = 1, -1 nodes 1, 2 and 3 have V = 1, and all three have the local term of node 1."""
    assert treerl_rewards([[1, 2, 3], [4]], [1.0, 0.0]) == [[2.0, 2.0, 2.0], [-2.0]]


def test_treerl_matches_the_linked_tree():
    for tree in TREES:
        close(treerl_rewards(tree.paths, tree.rewards), oracle.treerl_rewards(tree))


# --- all rules on trees given by paths ---


@pytest.mark.parametrize("rule", RULES)
def test_the_order_of_leaves_changes_nothing(rule):
    for seed, tree in enumerate(TREES[:100]):
        out = list(rule(tree.paths, tree.rewards))
        order = np.random.default_rng(seed).permutation(len(out)).tolist()
        paths, rewards = [tree.paths[i] for i in order], [tree.rewards[i] for i in order]
        assert list(rule(paths, rewards)) == [out[i] for i in order]


@pytest.mark.parametrize("rule", RULES)
def test_the_numbers_of_nodes_change_nothing(rule):
    for tree in TREES[:100]:
        renamed = [[7 - 3 * number for number in path] for path in tree.paths]
        assert list(rule(renamed, tree.rewards)) == list(rule(tree.paths, tree.rewards))


@pytest.mark.parametrize("rule", RULES)
def test_equal_rewards_give_exactly_nothing(rule):
    for tree in TREES[:100]:
        if len(tree.leaves) > 1:
            for row in rule(tree.paths, [0.1] * len(tree.leaves)):
                assert not np.any(row)


@pytest.mark.parametrize("rule", RULES)
def test_no_leaves_give_nothing(rule):
    assert len(rule([], [])) == 0
    assert node_values([], []) == {}


@pytest.mark.parametrize("rule", [node_values, *RULES])
@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([[1, 2], [3, 2]], "node 2 has two parents"),
        ([[1, 1]], "node 1 has two parents"),
        ([[1, 2], [1]], r"paths\[1\] ends at node 1, which another leaf passes"),
        ([[1], [1, 2]], r"paths\[0\] ends at node 1, which another leaf passes"),
        ([[1], [1]], r"paths\[1\] ends at node 1"),
        ([[1], []], r"paths\[1\] ends at the root"),
        ([[]], r"paths\[0\] ends at the root"),
    ],
)
def test_what_is_no_tree_is_refused(rule, paths, message):
    with pytest.raises(ValueError, match=message):
        rule(paths, [0.0] * len(paths))


@pytest.mark.parametrize("rule", [node_values, *RULES])
@pytest.mark.parametrize("rewards", [[1.0], [1.0, 0.0, 0.0]])
def test_a_reward_for_each_leaf_is_asked_for(rule, rewards):
    with pytest.raises(ValueError):
        rule([[1], [2]], rewards)


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="'grpo2': use 'rloo' or 'grpo'"):
        edge_advantages([[1]], [1.0], "grpo2")


def test_jax_is_not_imported():
    module = "vinejax.contrib.methods.equations.shared_starts"
    code = f"import sys, {module}; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPO)
