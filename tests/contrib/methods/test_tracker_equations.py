"""The equations of single-stream policy optimization, compared with loops and by hand."""

import numpy as np
import pytest

from vinejax.contrib.methods.equations.value_tracker import (
    batch_advantages,
    draw_weights,
    first_counts,
    mean_drift,
    retention,
    tracked_values,
    updated_counts,
)


def f32(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def test_three_draws_of_a_problem_by_hand():
    """The counts after rewards 1, 1 and 0, from α = β = 4 and with D = 0."""
    alpha, beta = first_counts(f32(0), 0, 8.0)
    values, advantages, counts = [], [], []
    for reward in (1.0, 1.0, 0.0):
        value = float(tracked_values(alpha, beta)[0])
        values.append(value)
        advantages.append(reward - value)
        alpha, beta = updated_counts(alpha, beta, f32(reward), f32(0))
        counts.append([float(alpha[0]), float(beta[0])])
    np.testing.assert_allclose(values, [0.5, 0.5576, 0.6050], atol=5e-5)
    np.testing.assert_allclose(advantages, [0.5, 0.4424, -0.6050], atol=5e-5)
    expected = [[4.84, 3.84], [5.6464, 3.6864], [5.4205, 4.5389]]
    np.testing.assert_allclose(counts, expected, atol=5e-5)


def test_counts_equal_a_moving_average_of_the_rewards():
    """The counts give v ← v + η·(r - v), η = 1 / (ρ·(α + β) + 1), also for fractional rewards."""
    rng = np.random.default_rng(0)
    alpha, beta = f32(3), f32(5)
    value, count = 3 / 8, 8.0
    for _ in range(20):
        reward, drift = rng.uniform(), rng.uniform(0, 0.02)
        kept = min(max(2 ** (-drift / 0.06), 0.875), 0.96)
        count = kept * count + 1
        value += (reward - value) / count
        alpha, beta = updated_counts(alpha, beta, f32(reward), f32(drift))
        np.testing.assert_allclose(tracked_values(alpha, beta), [value], rtol=1e-5)
        np.testing.assert_allclose(alpha + beta, [count], rtol=1e-5)


def test_the_first_values_by_hand():
    alpha, beta = first_counts(np.array([0, 3, 1.5]), 3, 8.0)
    np.testing.assert_allclose(alpha, [1, 7, 4], rtol=1e-6)
    np.testing.assert_allclose(beta, [7, 1, 4], rtol=1e-6)
    for found in first_counts(np.zeros(2), 0, 10.0):
        np.testing.assert_array_equal(found, [5, 5])


def test_retention_is_bounded_on_both_sides():
    drift = f32(0, 0.001, 0.0035, 0.0036, 0.01, 0.0115, 0.0116, 0.06, 100)
    expected = np.clip(2 ** (-drift.astype(np.float64) / 0.06), 0.875, 0.96)
    assert (expected == 0.96).sum() == (expected == 0.875).sum() == 3
    np.testing.assert_allclose(retention(drift), expected, rtol=1e-6)


def test_drift_is_a_mean_over_the_response():
    rng = np.random.default_rng(1)
    now, then = rng.normal(-1, 1, (2, 4, 6)).astype(np.float32)
    mask = np.arange(6) < np.array([6, 3, 1, 0])[:, None]
    expected = [
        np.abs(now[b, :n] - then[b, :n]).mean() if n else 0 for b, n in enumerate(mask.sum(1))
    ]
    now, then = np.where(mask, now, np.nan), np.where(mask, then, np.nan)
    np.testing.assert_allclose(mean_drift(now, then, mask), expected, rtol=1e-6)


def test_weights_are_largest_for_a_value_of_one_half():
    values = f32(0, 0.1, 0.5, 0.9, 1)
    np.testing.assert_allclose(
        draw_weights(values, 0.05), [0.05, 0.35, 0.55, 0.35, 0.05], rtol=1e-6
    )


def test_advantages_are_normalised_over_solutions():
    rewards, values = f32(1, 0, 0.25, 1, 0), f32(0.5, 0.25, 0.9, 0.1, 0)
    raw = (rewards - values).astype(np.float64)
    expected = (raw - raw.mean()) / (raw.std(ddof=1) + 1e-8)
    np.testing.assert_allclose(batch_advantages(rewards, values), expected, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_equal_advantages_are_exactly_0(count: int):
    rewards, values = np.zeros(count, np.float32), np.full(count, 0.6050, np.float32)
    np.testing.assert_array_equal(batch_advantages(rewards, values), np.zeros(count))
