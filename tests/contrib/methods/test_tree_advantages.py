"""Credit on trees through a batch, compared with figures of each method's paper or code."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods

from vinejax.core.types import Episode
from vinejax.credit.assign import Credit
from vinejax.learner.batch import collate

# A tree of two levels of two branches, with 3 tokens per node, and the rewards of its leaves.
PATHS = [[0, 1], [0, 2], [3, 4], [3, 5]]
REWARDS = [1.0, 0.0, 0.0, 0.0]


def leaf(i: int, **fields: Any) -> Episode:
    first, second = PATHS[i]
    response = [3 + first] * 3 + [3 + second] * 3
    given = {"step_ends": [3, 6], "reward": REWARDS[i], "nodes": PATHS[i], "problem_id": "p"}
    one = cases.episode([0, 2], response, **given | fields)
    return dataclasses.replace(one, logprobs=[-1.0] * 6)  # a probability that is trained on


def credit_of(method: str, episodes: list[Episode], **fields: Any) -> Credit:
    batch = collate(episodes, len(episodes))
    return methods.credit(methods.config(method, **fields), rows=batch, solutions=episodes)


def by_step(method: str, episodes: list[Episode], **fields: Any) -> np.ndarray:
    return np.asarray(credit_of(method, episodes, **fields).by_step)[:, :2]


def test_spo_tree_trains_on_each_node_once_and_drops_those_without_a_difference():
    second = {"given": 3, "step_ends": [6]}
    episodes = [leaf(0), leaf(1, **second), leaf(2), leaf(3, **second)]
    expected = [[0.25, 0.5], [-0.5, 0.0], [-0.25, 0.0], [0.0, 0.0]]
    credit = credit_of("spo_tree", episodes)
    np.testing.assert_allclose(np.asarray(credit.by_step)[:, :2], expected)
    trained = [row.nonzero()[0].tolist() for row in np.asarray(credit.mask)]
    assert trained == [[2, 3, 4, 5, 6, 7], [5, 6, 7], [2, 3, 4], []]
    kept = np.asarray(credit_of("spo_tree", episodes, spo_tree={"drop": False}).mask)
    assert kept.sum(axis=1).tolist() == [6, 3, 6, 3]


def test_spo_tree_with_scaled_advantages():
    episodes = [leaf(i) for i in range(4)]
    found = by_step("spo_tree", episodes, spo_tree={"normalise": "grpo"})
    np.testing.assert_allclose(found, [[1, 1], [1, -1], [-1, 0], [-1, 0]], atol=1e-6)


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [("average", [0.625, -0.375, -0.125, -0.125]), ("group_size", [2 / 3, -1 / 3, -1 / 6, -1 / 6])],
)
def test_treepo(weighting: Any, expected: list[float]):
    found = by_step("treepo", [leaf(i) for i in range(4)], treepo={"weighting": weighting})
    np.testing.assert_allclose(found, np.array([expected, expected]).T, atol=1e-6)


def test_treerl():
    found = by_step("treerl", [leaf(i) for i in range(4)])
    expected = [[0.4714, 1.7643], [0.4714, -0.9024], [-0.4714, -0.4310], [-0.4714, -0.4310]]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_tree_grpo_compares_in_the_tree_and_in_the_problem():
    found = by_step("tree_grpo", [leaf(i) for i in range(4)])
    np.testing.assert_allclose(found[:, 0], [2.2071, -1.2071, -0.5, -0.5], atol=1e-4)


def test_tempo_adds_the_difference_of_the_token_to_what_grpo_gives():
    responses = [[11, 12, 13], [11, 12, 14], [11, 15, 16], [11, 15, 17]]
    episodes = [
        cases.episode([0, 2], response, reward=reward, problem_id="p", step_ends=[3])
        for response, reward in zip(responses, REWARDS, strict=True)
    ]
    credit = credit_of("tempo", episodes)
    differences = [[0, 0.25, 0.5], [0, 0.25, -0.5], [0, -0.25, 0], [0, -0.25, 0]]
    outcomes = np.array(REWARDS)[:, None] - np.mean(REWARDS)
    expected = (outcomes + differences) / np.std(REWARDS)
    np.testing.assert_allclose(np.asarray(credit.advantages)[:, 2:5], expected, atol=1e-5)


@pytest.mark.parametrize("method", ["spo_tree", "treepo", "treerl", "tree_grpo", "tempo"])
def test_trees_of_two_problems_do_not_mix(method: str):
    one = [leaf(i) for i in range(4)]
    flat = [leaf(i, problem_id="q", reward=1.0) for i in range(4)]
    fields = {"ppo": {"whiten": "none"}}
    found = by_step(method, one + flat, **fields)
    np.testing.assert_array_equal(found[:4], by_step(method, one, **fields))
    assert not found[4:].any()
