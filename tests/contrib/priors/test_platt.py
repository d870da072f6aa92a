"""Values by a user's function: their scaling and their weight."""

import numpy as np
import pytest

from vinejax.contrib.priors import platt
from vinejax.credit import probe
from vinejax.credit.probe import ProbeStates

SIZE = 240


def states(seed: int, count: int, says) -> tuple[ProbeStates, np.ndarray]:
    """(states, their true values); `says` makes a function's numbers from true values."""
    rng = np.random.default_rng(seed)
    truth = rng.beta(0.6, 0.6, size=SIZE)
    own, value = (rng.random(SIZE) < truth).astype(float), rng.binomial(count, truth) / count
    numbers = platt.logits(says(rng, truth))
    return ProbeStates(numbers, np.arange(SIZE), own, value, np.full(SIZE, count)), truth


def after(iterations: int, count: int, says, seed: int = 0):
    """(scaling, states, v, true values) in the last iteration, before its update."""
    kept = platt.fresh_scaling()
    for i in range(iterations):
        rows, truth = states(100 * seed + i, count, says)
        predicted = platt.predictions(kept, rows)
        if i == iterations - 1:
            return kept, rows, predicted[0], truth
        kept = platt.updated(kept, rows, predicted, rows.value, np.ones(SIZE, bool))
    raise AssertionError


def exact(rng: np.random.Generator, truth: np.ndarray) -> np.ndarray:
    return truth


def overconfident(rng: np.random.Generator, truth: np.ndarray) -> np.ndarray:
    """Numbers whose logits are three times as large, and shifted up."""
    x = platt.logits(truth)[:, 0]
    return 1 / (1 + np.exp(-3 * x - 1.5))


def at_random(rng: np.random.Generator, truth: np.ndarray) -> np.ndarray:
    return rng.random(SIZE)


def constant(rng: np.random.Generator, truth: np.ndarray) -> np.ndarray:
    return np.full(SIZE, 0.5)


def test_numbers_are_values_before_there_are_targets():
    _, _, v, truth = after(1, 1, exact)
    inside = (truth > 0.001) & (truth < 0.999)
    np.testing.assert_allclose(v[inside], truth[inside], atol=1e-9)
    assert platt.mean_target(platt.fresh_scaling()) == 0.5
    ends = platt.logits(np.array([0.0, 1.0]))[:, 0]
    np.testing.assert_allclose(ends, [-platt.WIDEST, platt.WIDEST])


def test_the_fit_is_that_of_single_targets():
    """Newton's method on all single targets has nearly the same result as the bins."""
    rows, _ = states(1, 3, overconfident)
    kept = platt.fresh_scaling()
    kept = platt.updated(kept, rows, platt.predictions(kept, rows), rows.value, np.ones(SIZE, bool))
    target, weight = probe.targets(rows)
    x = np.stack([rows.features[:, 0], np.ones(SIZE)])
    expected = np.array([0.3, 0.0])
    for _ in range(50):
        p = 1 / (1 + np.exp(-expected @ x))
        slope = x @ (weight * (target - p)) - (expected - [1, 0])
        expected = expected + np.linalg.solve((x * weight * p * (1 - p)) @ x.T + np.eye(2), slope)
    v = platt.predictions(kept, rows)[0]
    np.testing.assert_allclose(v, 1 / (1 + np.exp(-expected @ x)), atol=5e-3)
    assert platt.mean_target(kept) == pytest.approx((weight * target).sum() / weight.sum())


def test_a_wrong_scale_is_mended():
    """The scaled v has a smaller squared error than the numbers, and `value/error` estimates it."""
    _, rows, v, truth = after(5, 3, overconfident)
    raw = 1 / (1 + np.exp(-rows.features[:, 0]))
    error = np.mean((v - truth) ** 2)
    assert error < 0.005 < 0.025 < np.mean((raw - truth) ** 2)
    found = probe.metrics(rows, v, 0.5, rows.value)["value/error"]
    assert abs(found - error) < 4 * 0.25 / np.sqrt(3 * SIZE)


def test_a_perfect_value_lowers_the_error():
    """The comparison is with the mean target, the best constant."""
    error = {}
    for says in (exact, constant):
        _, rows, v, _ = after(5, 3, says)
        error[says] = probe.metrics(rows, v, 0.5, rows.value)["value/error"]
    assert error[exact] < 0.02 and error[constant] > 0.06


@pytest.mark.first(4)
@pytest.mark.parametrize("says", [at_random, constant])
@pytest.mark.parametrize("count", [1, 9, 3])
def test_nonsense_has_no_weight(count: int, says):
    """The weight stays below .1 in the first iterations of all forty runs."""
    for seed in range(40):
        kept, *_ = after(6, count, says, seed)
        assert platt.weight_of(kept) < 0.1, seed


def test_a_good_value_has_weight():
    kept, *_ = after(2, 1, exact)
    assert platt.weight_of(kept) == 0
    assert platt.weight_of(after(6, 1, exact)[0]) > 0.7
    # With 64 continuations of each state there is little left that v could mend.
    assert platt.weight_of(after(6, 64, overconfident)[0]) < 0.6


def test_v_is_fixed_before_the_targets_of_its_iteration():
    """Weight and v come from earlier iterations, so the gradient is unbiased for any v."""
    kept, rows, v, _ = after(4, 2, overconfident)
    other = rows._replace(solution_return=1 - rows.solution_return, value=1 - rows.value)
    np.testing.assert_array_equal(platt.predictions(kept, other)[0], v)
    changed = platt.updated(kept, other, v[None], rows.value, np.ones(SIZE, bool))
    same = platt.updated(kept, rows, v[None], rows.value, np.ones(SIZE, bool))
    assert platt.weight_of(changed) < platt.weight_of(same)


def test_states_without_a_baseline_do_not_weigh():
    kept, rows, v, _ = after(4, 2, exact)
    none = platt.updated(kept, rows, v[None], rows.value, np.zeros(SIZE, bool))
    np.testing.assert_allclose(none.products, probe.KEPT * kept.products)
    assert none.bins[0].sum() == pytest.approx(3 * SIZE + probe.KEPT * kept.bins[0].sum())
