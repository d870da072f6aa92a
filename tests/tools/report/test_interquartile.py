"""Statistics of runs, against rliable's numbers, hand-made numbers and a slow oracle."""

import functools
import itertools
import json
import math
import statistics
from typing import Any

import numpy as np
import pytest
from helpers.paths import FIXTURES
from hypothesis import given, settings
from hypothesis import strategies as st

from vinejax.tools.report.interquartile import (
    _newcombe,
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


@functools.cache
def interval_at(wins: int, runs: int) -> tuple[float, float]:
    """The interval where `wins` of the runs·runs pairs of runs favour the first group."""
    low, high = _newcombe(wins / runs**2, runs, runs)
    return low, high


def coverage_by_collapse(runs: int, theta: float) -> float:
    """Exact coverage if each run of x collapses with chance 1 - θ, and is else above all of y."""
    covered = 0.0
    for good in range(runs + 1):
        low, high = interval_at(good * runs, runs)
        if low <= theta <= high:
            covered += math.comb(runs, good) * theta**good * (1 - theta) ** (runs - good)
    return covered


@pytest.mark.parametrize(
    "runs, least, most, mean",
    [(3, 0.75, 0.99, 0.93), (5, 0.78, 0.98, 0.91), (10, 0.77, 0.97, 0.90)],
)
def test_where_runs_collapse_an_interval_of_an_improvement_is_too_narrow(runs, least, most, mean):
    """The figures of docs/metrics.md and of `improvement_interval`."""
    found = [coverage_by_collapse(runs, theta) for theta in np.arange(0.5, 0.9905, 0.001)]
    assert min(found) == pytest.approx(least, abs=0.005)
    assert max(found) == pytest.approx(most, abs=0.005)
    assert statistics.fmean(found) == pytest.approx(mean, abs=0.005)


@pytest.mark.parametrize(
    "spread, runs, least, most",
    [
        *[(1, 3, 0.90, 0.97), (1, 5, 0.94, 0.97), (1, 10, 0.95, 0.96)],
        *[(10, 3, 0.80, 0.98), (10, 5, 0.88, 0.97), (10, 10, 0.86, 0.94)],
    ],
)
def test_an_unequal_spread_makes_an_interval_of_an_improvement_too_narrow(
    spread, runs, least, most
):
    """Scores are normal, and y has `spread` times the spread of x; the figures are those above."""
    rng, found = np.random.default_rng(0), []
    for theta in (0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95, 0.99):
        shift = statistics.NormalDist().inv_cdf(theta) * (1 + spread**2) ** 0.5
        x, y = rng.normal(shift, 1, (8000, runs, 1)), rng.normal(0, spread, (8000, 1, runs))
        wins, counts = np.unique((x > y).sum(axis=(1, 2)), return_counts=True)
        ends = [interval_at(int(n), runs) for n in wins]
        held = [n for n, (low, high) in zip(counts, ends, strict=True) if low <= theta <= high]
        found.append(sum(held) / 8000)
    assert least - 0.015 < min(found) < least + 0.025 and max(found) < most + 0.015


def test_three_runs_that_are_all_better_than_three():
    """What one can say of them: the chance to be better is at least a half."""
    estimate = improvement_interval([[0.99, 0.88, 0.98]], [[0.75, 0.76, 0.76]])
    assert estimate == pytest.approx((1.0, 0.50, 1.0), abs=0.005)


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
