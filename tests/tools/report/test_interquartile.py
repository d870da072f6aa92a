"""Statistics of runs, against rliable's numbers, hand-made numbers and a slow oracle."""

import itertools
import json
import statistics
from typing import Any

import numpy as np
import pytest
from helpers.paths import FIXTURES
from hypothesis import given, settings
from hypothesis import strategies as st

from vinejax.tools.report.interquartile import (
    improvement_interval,
    interquartile_mean,
    iqm_difference,
    iqm_interval,
    probability_of_improvement,
)

RLIABLE: dict[str, Any] = json.loads((FIXTURES / "rliable.json").read_text(encoding="utf-8"))

tasks = st.lists(
    st.lists(st.integers(0, 8).map(lambda i: i / 8), min_size=1, max_size=5),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize("name", RLIABLE["cases"])
def test_rliable_says_the_same(name):
    case = RLIABLE["cases"][name]
    iqm = iqm_interval(case["x"])
    improvement = probability_of_improvement(case["x"], case["y"])
    assert iqm.value == pytest.approx(case["iqm"][0], abs=1e-12)
    assert improvement == pytest.approx(case["improvement"][0], abs=1e-12)
    assert iqm[1:] == pytest.approx(case["iqm"][1:], abs=0.004)  # of random draws


def test_worked_numbers():
    assert interquartile_mean([[9.0, 1.0, 2.0, 3.0, -5.0]]) == 2.0  # 9 and -5 are left out
    assert interquartile_mean([[1.0], [2.0, 6.0]]) == 3.0  # a quarter of three is none
    # One task: 3 > 1, 3 > 2, 2 > 1, and 2 = 2 counts half. The other: always less.
    assert probability_of_improvement([[3.0, 2.0]], [[1.0, 2.0]]) == 3.5 / 4
    assert probability_of_improvement([[3.0, 2.0], [0.0]], [[1.0, 2.0], [1.0]]) == 3.5 / 8


@given(tasks, st.data())
@settings(max_examples=60)
def test_the_definitions_by_loops(x, data):
    """Sorting and pairs one by one; exchanging x and y gives the complement."""
    pooled = sorted(itertools.chain(*x))
    cut = len(pooled) // 4
    assert interquartile_mean(x) == pytest.approx(statistics.fmean(pooled[cut : len(pooled) - cut]))
    y = [data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=4)) for _ in x]
    shares = []
    for runs_x, runs_y in zip(x, y, strict=True):
        points = [
            1.0 if a > b else 0.5 if a == b else 0.0 for a, b in itertools.product(runs_x, runs_y)
        ]
        shares.append(statistics.fmean(points))
    assert probability_of_improvement(x, y) == pytest.approx(statistics.fmean(shares))
    assert probability_of_improvement(y, x) == pytest.approx(1 - statistics.fmean(shares))


def test_intervals_of_a_normal_mean_have_the_right_width():
    """With 400 runs the interval of a mean of the middle half is that of theory."""
    runs = np.random.default_rng(3).normal(0.0, 1.0, 400)
    estimate = iqm_interval([runs], draws=4000)
    # The asymptotic variance of the 25% trimmed mean of normal values is 1.195 / N.
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * (1.195 / 400) ** 0.5, rel=0.12)
    assert estimate.low < estimate.value < estimate.high


def test_tasks_are_strata():
    """Every draw has every task, so that constant tasks, however different, leave no spread."""
    assert iqm_interval([[0.2] * 4, [0.8] * 4]) == pytest.approx((0.5, 0.5, 0.5))
    assert iqm_difference([[0.9] * 3], [[0.4] * 5]) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.parametrize(("chance", "runs"), [(0.5, 10), (0.8, 5), (0.95, 10), (0.95, 5)])
def test_intervals_of_an_improvement_hold_the_truth_as_often_as_they_say(chance, runs):
    """Coverage holds near 1, too, where a percentile bootstrap covers in 47% with five runs."""
    rng = np.random.default_rng(3)
    shift = statistics.NormalDist().inv_cdf(chance) * 2**0.5
    held = 0
    for own, other in rng.normal([[[shift], [0.0]]], 1.0, (400, 2, runs)):
        estimate = improvement_interval([own], [other])
        held += estimate.low <= chance <= estimate.high
    assert 0.92 <= held / 400 <= 0.985


def test_intervals_of_an_improvement():
    """The equation where all runs agree; several tasks have a narrower interval than one."""
    value, low, high = improvement_interval([[0.9] * 10], [[0.4] * 10])
    spread = (1 - low) / (2 - low) + low / (1 + low)
    error = low * (1 - low) / 100 * (1 + 9 * spread)
    assert (value, high) == (1.0, 1.0) and 1 - low == pytest.approx(1.959964 * error**0.5)
    turned = improvement_interval([[0.4] * 10], [[0.9] * 10])
    assert turned == pytest.approx((0.0, 0.0, 1 - low))
    twice = improvement_interval([[0.9] * 10] * 2, [[0.4] * 10] * 2)
    assert twice == pytest.approx((1.0, 1 - (1 - low) / 2**0.5, 1.0))


def test_the_same_scores_and_seed_give_the_same_interval():
    x, y = [[0.1, 0.5, 0.3, 0.8]], [[0.2, 0.4, 0.3]]
    assert iqm_interval(x) == iqm_interval(x)
    many = [np.random.default_rng(5).normal(size=40)]
    assert iqm_interval(many, draws=50) != iqm_interval(many, seed=1, draws=50)
    difference = iqm_difference(x, y)
    assert difference.value == interquartile_mean(x) - interquartile_mean(y)
    assert difference.low < difference.value < difference.high


@pytest.mark.parametrize("scores", ([], [[]], [[0.5], []], [np.ones((2, 1))]))
def test_scores_without_runs_are_refused(scores):
    with pytest.raises(ValueError, match="expected the scores of runs"):
        iqm_interval(scores)
    with pytest.raises(ValueError, match="expected the scores of runs"):
        improvement_interval([[0.5]], scores)


def test_different_numbers_of_tasks_are_refused():
    with pytest.raises(ValueError, match="x has 2 tasks, y 1"):
        probability_of_improvement([[1.0], [1.0]], [[1.0]])
