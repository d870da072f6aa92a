"""Bootstrap intervals over problems: their draws, their coverage, and data without one."""

import dataclasses

import numpy as np
import pytest
from helpers.tools.bench_cases import interval

from vinejax.statistics.accuracy import bootstrap_interval
from vinejax.tools.bench.intervals import Bootstrap, Measure


def test_draws_take_whole_problems():
    problems = ["b", "a", "b", "c", "b"]
    seen: list[list[float]] = []
    Bootstrap(problems, samples=200).measure(lambda weights: seen.append(weights.tolist()) or 0.0)
    assert seen[0] == [1, 1, 1, 1, 1]  # for the value itself
    for b, a, also_b, c, b_too in seen[1:]:
        assert b == also_b == b_too
        assert a + b + c == 3  # as many problems as there are
    assert len(seen) == 201 and len(set(map(tuple, seen))) > 5


def test_with_one_state_per_problem_it_is_the_interval_of_accuracies():
    scores = np.random.default_rng(0).random(12)
    found = Bootstrap([f"{i:02}" for i in range(12)], seed=3).mean(scores)
    np.testing.assert_allclose(interval(found), bootstrap_interval(scores, seed=3))
    assert found.value == pytest.approx(scores.mean())


def test_the_slow_way_gives_the_same():
    rng = np.random.default_rng(1)
    problems, x = [str(i) for i in rng.integers(0, 6, 40)], rng.random(40)
    counted = rng.random(40) < 0.5
    bootstrap = Bootstrap(problems, seed=5, samples=50)
    found = bootstrap.mean(x, counted)
    by_weights = bootstrap.measure(lambda w: float((w * counted) @ x / (w @ counted)))
    np.testing.assert_allclose(dataclasses.astuple(found), dataclasses.astuple(by_weights))
    names, draws, means = sorted(set(problems)), np.random.default_rng(5), []
    for _ in range(50):
        drawn = []
        for i in draws.integers(0, len(names), len(names)):
            drawn += [x[s] for s in range(40) if problems[s] == names[i] and counted[s]]
        means.append(sum(drawn) / len(drawn))
    assert found.value == pytest.approx(x[counted].mean())
    np.testing.assert_allclose(interval(found), np.quantile(means, [0.025, 0.975]))


def test_intervals_cover_the_mean_when_states_of_a_problem_are_alike():
    """States of a problem share most of their value: drawing states would give 0.6."""
    rng, covered = np.random.default_rng(2), []
    problems = np.repeat([str(i) for i in range(40)], 10).tolist()
    for repeat in range(150):
        x = np.repeat(rng.normal(size=40), 10) + 0.5 * rng.normal(size=400)
        found = Bootstrap(problems, seed=repeat, samples=200).mean(x)
        low, high = interval(found)
        covered.append(low <= 0 <= high)
    assert 0.88 <= np.mean(covered) <= 0.99


@pytest.mark.parametrize("problems", [[], ["a"], ["a", "a"]])
def test_fewer_than_two_problems_have_no_interval(problems: list[str]):
    x = np.arange(1.0, len(problems) + 1)
    value = float(x.mean()) if problems else None
    assert Bootstrap(problems).mean(x) == Measure(value, None, None)


def test_what_is_not_defined():
    bootstrap = Bootstrap(["a", "b"])
    nowhere = bootstrap.mean(np.ones(2), np.array([False, False]))
    assert nowhere == Measure(None, None, None)
    # Half of the draws have problem a twice or b twice; those without b are left out.
    assert bootstrap.mean(np.array([1.0, 3.0]), np.array([False, True])) == Measure(3, 3, 3)
