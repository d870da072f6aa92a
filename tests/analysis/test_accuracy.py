"""Accuracy statistics against enumeration and cases worked by hand."""

import itertools

import numpy as np
import pytest

from vinejax.analysis.accuracy import (
    accuracy_metrics,
    bootstrap_interval,
    maj_at_k,
    pass_at_1,
    pass_at_k,
)


def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample():
    for n in range(1, 8):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize("n, c, k", [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)])
def test_pass_at_k_refuses_what_has_no_meaning(n: int, c: int, k: int):
    with pytest.raises(ValueError):
        pass_at_k(n, c, k)


def test_pass_at_1_counts_full_rewards_only():
    assert pass_at_1([[1.0, 0.9], [2.0, 1.0]]) == 0.75


@pytest.mark.parametrize(
    "rewards, answers, expected",
    [
        ([0, 1, 1], ["5", "7", "7"], 1.0),
        ([1, 0, 0], ["5", "7", "7"], 0.0),
        ([1, 0], ["5", "7"], 1.0),  # a tie: the first seen
        ([0, 1], ["7", "5"], 0.0),
        ([0, 0, 1], [None, None, "5"], 1.0),  # None does not vote
        ([0, 1, 0], ["5", "5", None], 0.0),  # graded at its first occurrence
        ([1, 0], [None, None], 1.0),
        ([0.9], ["5"], 0.0),
    ],
)
def test_maj_at_k_by_hand(rewards: list[float], answers: list[str | None], expected: float):
    assert maj_at_k(rewards, answers) == expected


def test_maj_at_k_needs_one_answer_a_reward():
    with pytest.raises(ValueError):
        maj_at_k([1.0], ["5", "7"])
    with pytest.raises(ValueError):
        maj_at_k([], [])


def test_bootstrap_interval_is_that_of_the_normal_limit():
    scores = np.random.default_rng(0).random(2000)
    low, high = bootstrap_interval(scores, seed=1, samples=2000)
    half = 1.96 * scores.std() / np.sqrt(scores.size)
    np.testing.assert_allclose([low, high], scores.mean() + np.array([-half, half]), atol=half / 10)


def test_bootstrap_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for seed in range(300):
        low, high = bootstrap_interval(rng.random(60) < 0.3, seed, samples=200, level=0.8)
        hits += low <= 0.3 <= high
    assert 0.72 < hits / 300 < 0.86  # 0.8 less the bias of a percentile interval, four deviations


def test_bootstrap_interval_depends_on_the_seed_alone():
    scores = np.arange(20.0)
    assert bootstrap_interval(scores, 3) == bootstrap_interval(scores, 3)
    assert bootstrap_interval(scores, 3) != bootstrap_interval(scores, 4)
    assert bootstrap_interval(np.ones(5), 0) == (1.0, 1.0)
    with pytest.raises(ValueError):
        bootstrap_interval(np.ones((2, 2)), 0)
    with pytest.raises(ValueError):
        bootstrap_interval([], 0)


def test_metrics_by_hand():
    rewards = [[1, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0.5]]
    answers = [["5", "7", "7", "5", "7", None], [None] * 6, ["3"] * 5 + ["4"]]
    metrics = accuracy_metrics(rewards, answers)
    low, high = metrics.pop("pass_at_1_low"), metrics.pop("pass_at_1_high")
    assert metrics == {
        "pass_at_1": pytest.approx((2 / 6 + 0 + 5 / 6) / 3),
        "pass_at_2": pytest.approx(((1 - 6 / 15) + 0 + 1) / 3),
        "pass_at_4": pytest.approx(((1 - 1 / 15) + 0 + 1) / 3),
        "pass_at_6": pytest.approx(2 / 3),
        "maj_at_6": pytest.approx(1 / 3),
    }
    assert (low, high) == bootstrap_interval([2 / 6, 0, 5 / 6], 0)


@pytest.mark.parametrize("n, ks", [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (16, [1, 2, 4, 8, 16])])
def test_metrics_cover_powers_of_two_and_n(n: int, ks: list[int]):
    metrics = accuracy_metrics(np.ones((2, n)), [["1"] * n] * 2)
    names = {f"pass_at_{k}" for k in ks} | {"pass_at_1_low", "pass_at_1_high", f"maj_at_{n}"}
    assert metrics == dict.fromkeys(names, 1.0)


def test_metrics_refuse_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match="2 problems, answers of 1"):
        accuracy_metrics(np.ones((2, 1)), [["1"]])
    with pytest.raises(ValueError, match="shape"):
        accuracy_metrics(np.ones((0, 4)), [])
    with pytest.raises(ValueError, match="3 answers"):
        accuracy_metrics(np.ones((1, 4)), [["1"] * 3])
