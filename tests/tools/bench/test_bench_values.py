"""Errors of predicted values: by hand, against slow loops, and for known values."""

import dataclasses
import json

import numpy as np
import pytest
import scipy.stats
from helpers.chain_cases import NUM_LETTERS, START, fill_drawn
from helpers.tools.bench_cases import FAIR, interval, number
from helpers.vine_cases import config

from vinejax.tools.bench.intervals import Measure
from vinejax.tools.bench.value_error import (
    Truth,
    calibration,
    mean_ranks,
    rank_correlation,
    truth_of,
    value_scores,
)


def exactly(values: np.ndarray) -> Truth:
    return Truth(values, np.zeros(len(values)))


def test_truth_of_returns_by_hand():
    truth = truth_of([[1, 0, 1, 1], [0.5, 0.5, 0.5, 0.5]])
    np.testing.assert_allclose(truth.means, [0.75, 0.5])
    # (3 · 0.25² + 0.75²) / 3 / 4 = 0.0625 = 0.75 · 0.25 / 3
    np.testing.assert_allclose(truth.variances, [0.0625, 0.0])
    for shape in [(3,), (3, 1)]:
        with pytest.raises(ValueError, match="returns with n >= 2"):
            truth_of(np.zeros(shape))


def test_scores_by_hand():
    truth = Truth(np.array([0.5, 0.5, 1.0, 0.0]), np.array([0.01, 0.03, 0.0, 0.0]))
    found = value_scores([0.7, 0.4, 1.0, 0.4], truth, [0.0, 0.5, 0.5, 0.99], ["a", "a", "b", "b"])
    assert (found.states, found.problems, found.unpredicted) == (4, 2, 0)
    # Differences 0.2, -0.1, 0, 0.4: those of problem a have mean 0.05, those of b 0.2.
    np.testing.assert_allclose(
        [number(found.bias.value), *interval(found.bias)], [0.125, 0.05, 0.2]
    )
    np.testing.assert_allclose([number(found.mae.value), *interval(found.mae)], [0.175, 0.15, 0.2])
    # Squares 0.04, 0.01, 0, 0.16, less the truth's 0.01, 0.03.
    np.testing.assert_allclose(number(found.squared_error.value), (0.03 - 0.02 + 0 + 0.16) / 4)
    np.testing.assert_allclose(number(found.truth_error), 0.1)
    # Ranks 3, 1.5, 4, 1.5 and 2.5, 2.5, 4, 1: less 2.5 each (.5, -1, 1.5, -1), (0, 0, 1.5, -1.5).
    np.testing.assert_allclose(number(found.rank_correlation.value), 3.75 / np.sqrt(4.5 * 4.5))
    assert [part.states for part in found.by_position] == [1, 0, 2, 0, 1]
    assert [part.low for part in found.by_position] == [0.0, 0.2, 0.4, 0.6, 0.8]
    np.testing.assert_allclose(number(found.by_position[0].bias.value), 0.2)
    np.testing.assert_allclose(number(found.by_position[2].mae.value), 0.05)
    assert found.by_position[1].mae == Measure(None, None, None)
    bins = found.calibration
    assert [b.states for b in bins] == [0, 0, 0, 0, 2, 0, 0, 1, 0, 1]
    assert number(bins[4].prediction) == 0.4 and number(bins[4].truth) == 0.25
    assert (bins[9].low, bins[9].high, bins[9].prediction, bins[9].truth) == (0.9, 1.0, 1.0, 1.0)
    assert bins[0].prediction is None and bins[0].truth is None
    assert json.loads(json.dumps(dataclasses.asdict(found)))["mae"]["value"] == found.mae.value


def test_states_without_a_prediction_are_counted_and_left_out():
    truth = Truth(np.array([0.5, 0.5, 1.0]), np.array([0.01, 9.0, 0.01]))
    found = value_scores([0.5, np.nan, 0.75], truth, [0.0, 0.5, 0.5], ["a", "b", "c"])
    assert (found.states, found.problems, found.unpredicted) == (2, 2, 1)
    assert found == dataclasses.replace(
        value_scores(
            [0.5, 0.75],
            Truth(np.array([0.5, 1.0]), np.array([0.01, 0.01])),
            [0.0, 0.5],
            ["a", "c"],
        ),
        unpredicted=1,
    )


def test_one_state_and_none():
    one = value_scores([0.25], Truth(np.array([0.5]), np.array([0.01])), [0.0], ["a"])
    assert one.mae == Measure(0.25, None, None) and one.bias == Measure(-0.25, None, None)
    assert one.rank_correlation == Measure(None, None, None)
    none = value_scores([], exactly(np.zeros(0)), [], [])
    assert none.states == 0 and none.mae == Measure(None, None, None)
    assert none.truth_error is None and none.calibration[3].states == 0


def test_bad_arguments():
    truth = exactly(np.zeros(2))
    with pytest.raises(ValueError, match=r"lengths \[2, 2, 2, 1, 2\]"):
        value_scores([0, 0], truth, [0.5], ["a", "b"])
    with pytest.raises(ValueError, match=r"from 0\.5 to 1\.0: must be in \[0, 1\)"):
        value_scores([0, 0], truth, [0.5, 1.0], ["a", "b"])


def test_constant_predictions_have_no_rank_correlation():
    truth = exactly(np.array([0.1, 0.2, 0.9]))
    for predicted, means in [([0.5] * 3, truth.means), ([0.1, 0.2, 0.3], np.ones(3))]:
        found = value_scores(predicted, exactly(means), [0.0] * 3, ["a", "b", "c"])
        assert found.rank_correlation == Measure(None, None, None)
        assert found.mae.value is not None


def test_rank_correlation_is_scipys():
    rng = np.random.default_rng(0)
    for size, levels in [(5, 2), (20, 4), (50, 10), (30, 1000)]:
        a, b = rng.integers(0, levels, (2, size))
        for times in [np.ones(size, int), rng.integers(0, 3, size)]:
            found = rank_correlation(a, b)(times.astype(float))
            ranks = [scipy.stats.rankdata(np.repeat(x, times)) for x in (a, b)]
            np.testing.assert_allclose(number(found), np.corrcoef(ranks)[0, 1])
    assert rank_correlation(np.array([1.0, 2.0]), np.array([5.0, 3.0]))(np.ones(2)) == -1


def test_ranks_by_hand():
    numbers, weights = np.array([2, 0, 0, 1, 2]), np.array([1.0, 1.0, 1.0, 2.0, 0.0])
    # The values 0, 0, 1, 1, 2 have ranks 1.5, 1.5, 3.5, 3.5, 5.
    np.testing.assert_array_equal(mean_ranks(numbers, weights), [5.0, 1.5, 1.5, 3.5, 5.0])


def test_bins_of_the_calibration():
    # At an edge, also in float32, a prediction counts above it; outside, in the outermost bins.
    predicted = np.array([-0.2, 0.0, np.float32(0.7), 0.7, 1.0, 1.4])
    found = calibration(predicted, np.arange(6.0))
    assert [b.states for b in found] == [2, 0, 0, 0, 0, 0, 0, 2, 0, 2]
    assert found[7].truth == 2.5 and found[9].truth == 4.5
    assert [b.low for b in found] == pytest.approx([i / 10 for i in range(10)])
    assert [b.high for b in found] == pytest.approx([i / 10 for i in range(1, 11)])


def test_a_perfect_predictor_is_calibrated_and_few_rollouts_are_not():
    rng = np.random.default_rng(1)
    values = rng.random(4000)
    problems = [str(i % 50) for i in range(len(values))]
    truth = truth_of(rng.random((len(values), 32)) < values[:, None])
    found = value_scores(values, truth, np.zeros(len(values)), problems)
    for one in found.calibration:
        difference = number(one.prediction) - number(one.truth)
        assert abs(difference) < 5 * np.sqrt(0.25 / 32 / one.states)
    # E[V | mean of 2 returns is 1] = 3/4 for uniform V.
    pairs = (rng.random((len(values), 2)) < values[:, None]).mean(axis=1)
    assert abs(number(calibration(pairs, truth.means)[-1].truth) - 0.75) < 0.02
    # The truth's noise: none of it is in the squared error, and at most `truth_error` in the MAE.
    low, high = interval(found.squared_error)
    assert abs(number(found.squared_error.value)) < 0.75 * (high - low) and high < 5e-4
    noise = number(found.truth_error)
    np.testing.assert_allclose(noise, np.sqrt(1 / 6 / 32), rtol=0.03)
    assert 0.7 * noise < number(found.mae.value) < noise


def test_noise_of_the_truth_in_the_mae_is_bounded():
    rng = np.random.default_rng(2)
    values = rng.random(4000)
    predicted = np.clip(values + rng.normal(size=4000) * 0.05, 0, 1)
    truth = truth_of(rng.random((4000, 64)) < values[:, None])
    problems = [str(i % 50) for i in range(4000)]
    exact = value_scores(predicted, exactly(values), np.zeros(4000), problems)
    noisy = value_scores(predicted, truth, np.zeros(4000), problems)
    mae, bound = number(exact.mae.value), number(noisy.truth_error)
    assert mae < number(noisy.mae.value) < mae + bound
    squared = number(noisy.squared_error.value)
    np.testing.assert_allclose(squared, number(exact.squared_error.value), atol=4e-4)


def predictions(k: int, problems: int, seed: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """(estimates, V in closed form, problems) of the states of solutions of `FAIR`."""
    rng, values = np.random.default_rng(seed), FAIR.values()
    episodes = FAIR.episodes(rng, problems, group=2)
    filled, _ = fill_drawn(episodes, config(k=k), FAIR.draw(rng))
    estimated, exact, names = [], [], []
    for episode in filled:
        assert episode.values is not None
        for t, value in enumerate(episode.values):
            exact.append(values[t, episode.response[t - 1] if t else START])
            estimated.append(value)
            names.append(episode.problem_id)
    return np.array(estimated), np.array(exact), names


def test_monte_carlo_is_unbiased_within_its_interval():
    """The 95% interval holds 0 in 16 of 20 repetitions or more; fewer have a chance of 1 in 400."""
    covered = 0
    for seed in range(20):
        estimated, exact, names = predictions(k=3, problems=60, seed=seed)
        found = value_scores(estimated, exactly(exact), np.zeros(len(exact)), names)
        low, high = interval(found.bias)
        covered += low <= 0 <= high
    assert covered >= 16


def test_errors_fall_with_the_number_of_rollouts():
    """MAE ~ K^-1/2 on states of V = 0.3 to 0.7, where means of 3 returns or more are nearly normal.

    At K = 1 the MAE, 2·V·(1 - V), is up to a quarter above the normal's √(2 / π · V·(1 - V) / K):
    the slope from K = 1 on is -0.537 in expectation, from K = 3 on -0.504. Near V = 0 or 1 the MAE
    falls as K^0 at first. The root mean squared error falls as K^-1/2 everywhere.
    """
    rng, counts = np.random.default_rng(3), np.array([1, 3, 9, 27, 81])
    values = rng.uniform(0.3, 0.7, 10000)
    problems = [str(i % 20) for i in range(len(values))]
    truth = truth_of(rng.random((len(values), 256)) < values[:, None])
    mae, exact_mae, rmse = np.zeros((3, len(counts)))
    for i, k in enumerate(counts):
        predicted = rng.binomial(k, values) / k
        found = value_scores(predicted, truth, np.zeros(len(values)), problems)
        exact = value_scores(predicted, exactly(values), np.zeros(len(values)), problems)
        mae[i], exact_mae[i] = number(found.mae.value), number(exact.mae.value)
        rmse[i] = np.sqrt(number(found.squared_error.value))
    ones = np.arange(82)
    chances = scipy.stats.binom.pmf(ones, counts[:, None, None], values[:, None])
    expected = (chances * np.abs(ones / counts[:, None, None] - values[:, None])).sum(axis=2)
    np.testing.assert_allclose(exact_mae, expected.mean(axis=1), rtol=0.03)
    assert abs(slope(counts, rmse) + 0.5) < 0.01
    assert abs(slope(counts[1:], exact_mae[1:]) + 0.5) < 0.03
    assert abs(slope(counts, exact_mae) + 0.537) < 0.03
    # The noise of the truth, that of 256 returns, is not negligible at K = 81.
    assert slope(counts, exact_mae) < slope(counts, mae) < -0.44


def slope(counts: np.ndarray, errors: np.ndarray) -> float:
    """The least-squares slope of log errors over log counts."""
    return float(np.polyfit(np.log(counts), np.log(errors), 1)[0])


@pytest.mark.slow
def test_errors_of_the_rules_fall_with_the_number_of_rollouts():
    """The same for `fill_values` on a chain, against values in closed form."""
    counts, rmse = np.array([1, 3, 9, 27]), []
    for k in counts.tolist():
        estimated, exact, names = predictions(k, problems=500, seed=k)
        found = value_scores(estimated, exactly(exact), np.zeros(len(exact)), names)
        rmse.append(np.sqrt(number(found.squared_error.value)))
    assert abs(slope(counts, np.array(rmse)) + 0.5) < 0.03
    assert FAIR.values()[1:, :NUM_LETTERS].std() > 0.1
