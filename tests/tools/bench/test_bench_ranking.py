"""The ranking of next steps: by hand, against slow loops, its ties and its chance level."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from helpers.tools.bench_cases import interval, number

from vinejax.tools.bench.intervals import Measure
from vinejax.tools.bench.ranking import ordered_pairs, ranking_scores, top_score

BY_HAND = {
    # predicted, truth: expected score of the guess, that of chance, right pairs, pairs
    "right": ([0.1, 0.9, 0.5], [0.2, 0.8, 0.4], 1, 1 / 3, 3, 3),
    "wrong": ([0.9, 0.1, 0.5], [0.2, 0.8, 0.4], 0, 1 / 3, 0, 3),
    "two predicted best, one of them right": (
        [0.9, 0.9, 0.0],
        [0.8, 0.2, 0.1],
        1 / 2,
        1 / 3,
        2.5,
        3,
    ),
    "two truly best": ([0.0, 1.0, 0.5], [1.0, 1.0, 0.0], 1, 2 / 3, 1, 2),
    "two of each": ([1.0, 1.0, 0.5, 0.0], [1.0, 0.5, 1.0, 0.5], 1 / 2, 2 / 4, 2.5, 4),
    "constant prediction": ([0.3] * 4, [0.1, 0.2, 0.3, 0.4], 1 / 4, 1 / 4, 3, 6),
    "all equal in truth": ([0.1, 0.9], [1.0, 1.0], 1, 1, 0, 0),
    "a single step": ([0.5], [0.2], 1, 1, 0, 0),
    "equal but for rounding": ([0.3, 0.1 + 0.2], [0.1 + 0.2, 0.3], 1, 1, 0, 0),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_by_hand(case: str):
    predicted, truth, top, chance, right, pairs = BY_HAND[case]
    found = ranking_scores([predicted], [truth], ["a"])
    assert number(found.top.value) == pytest.approx(top)
    assert number(found.chance.value) == pytest.approx(chance)
    assert number(found.above_chance.value) == pytest.approx(top - chance)
    assert ordered_pairs(np.array(predicted), np.array(truth)) == (right, pairs)
    assert found.ordered.value == (right / pairs if pairs else None)
    assert found.top.low is None  # one problem


def test_states_count_alike_and_so_do_pairs():
    names = ["right", "wrong", "two truly best"]
    predicted, truth = ([BY_HAND[name][i] for name in names] for i in range(2))
    found = ranking_scores([*predicted, [0, 1]], [*truth, [0, 1]], ["a", "a", "b", "b"])
    assert (found.states, found.problems, found.pairs) == (4, 2, 9)
    assert found.alternatives == (3 + 3 + 3 + 2) / 4
    assert number(found.top.value) == pytest.approx(3 / 4)
    assert number(found.chance.value) == pytest.approx((1 / 3 + 1 / 3 + 2 / 3 + 1 / 2) / 4)
    assert number(found.ordered.value) == pytest.approx(5 / 9)
    # Draws of problem a alone and of problem b alone are the extremes.
    assert (found.top.low, found.top.high) == (0.5, 1.0)
    assert (found.ordered.low, found.ordered.high) == (0.5, 2 / 3)
    as_json = json.loads(json.dumps(dataclasses.asdict(found)))
    assert as_json["ordered"]["value"] == found.ordered.value


def slow_top(predicted: list[float], truth: list[float]) -> float:
    scores = []
    for guess in range(len(predicted)):
        if all(predicted[guess] >= other for other in predicted):
            scores.append(float(all(truth[guess] >= other for other in truth)))
    return sum(scores) / len(scores)


def slow_pairs(predicted: list[float], truth: list[float]) -> tuple[float, int]:
    right, pairs = 0.0, 0
    for i, j in itertools.permutations(range(len(truth)), 2):
        if truth[i] > truth[j]:
            pairs += 1
            if predicted[i] > predicted[j]:
                right += 1
            elif predicted[i] == predicted[j]:
                right += 0.5
    return right, pairs


def test_slow_loops_give_the_same():
    rng = np.random.default_rng(0)
    for _ in range(300):
        size, levels = int(rng.integers(1, 6)), int(rng.integers(1, 6))
        predicted, truth = rng.integers(0, levels, (2, size)) / 4
        assert top_score(predicted, truth) == slow_top(predicted.tolist(), truth.tolist())
        assert ordered_pairs(predicted, truth) == slow_pairs(predicted.tolist(), truth.tolist())


def test_the_expected_score_is_that_of_random_guesses():
    rng = np.random.default_rng(1)
    predicted, truth = np.array([0.5, 0.5, 0.1, 0.5]), np.array([1.0, 0.0, 1.0, 1.0])
    best = np.flatnonzero(predicted == predicted.max())
    scores = truth[rng.choice(best, 4000)] == truth.max()
    assert abs(scores.mean() - top_score(predicted, truth)) < 4 * math.sqrt(0.25 / 4000)
    guesses = truth[rng.integers(0, 4, 4000)] == truth.max()
    chance = top_score(np.zeros(4), truth)
    assert abs(guesses.mean() - chance) < 4 * math.sqrt(0.25 / 4000)


def test_a_random_prediction_scores_chance():
    rng = np.random.default_rng(2)
    truth = [rng.integers(0, 3, rng.integers(2, 6)) / 2 for _ in range(400)]
    predicted = [rng.random(len(values)) for values in truth]
    found = ranking_scores(predicted, truth, [str(i % 40) for i in range(400)])
    for measure, level in [(found.above_chance, 0.0), (found.ordered, 0.5)]:
        low, high = interval(measure)
        assert low < level < high
    constant = ranking_scores([np.ones(len(t)) for t in truth], truth, ["a"] * 400)
    assert number(constant.above_chance.value) == pytest.approx(0, abs=1e-12)
    assert constant.ordered.value == 0.5


def test_a_margin_counts_near_ties_alike():
    predicted, truth = [[0.0, 1.0, 0.5]], [[0.80, 0.78, 0.2]]
    exact, near = (ranking_scores(predicted, truth, ["a"], margin=m) for m in (0.0, 0.05))
    assert (exact.top.value, exact.pairs, exact.ordered.value) == (0.0, 3, 1 / 3)
    assert (near.top.value, near.pairs, near.ordered.value) == (1.0, 2, 1 / 2)
    assert near.chance.value == 2 / 3


def test_without_states_nothing_is_defined():
    found = ranking_scores([], [], [])
    assert found.alternatives is None and found.pairs == 0
    assert found.top == found.chance == found.ordered == Measure(None, None, None)


@pytest.mark.parametrize(
    "predicted, truth, problems, message",
    [
        ([[1, 0]], [[1, 0]], [], r"lengths \[1, 1, 0\]"),
        ([[1, 0]], [[1, 0, 0]], ["a"], "state 0: predicted"),
        ([[1, 0], []], [[1, 0], []], ["a", "a"], "state 1: predicted"),
        ([[1, math.nan]], [[1, 0]], ["a"], "state 0: predicted"),
    ],
)
def test_bad_arguments(predicted, truth, problems, message):
    with pytest.raises(ValueError, match=message):
        ranking_scores(predicted, truth, problems)
