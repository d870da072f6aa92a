"""The error of a gradient, on a policy whose values, gradient and variances are closed forms."""

import dataclasses
import itertools

import numpy as np
import pytest
from helpers import vine_cases
from helpers.chain_cases import CHAIN, NUM_LETTERS, START, fill_drawn

from vinejax.core.types import Episode
from vinejax.rl.advantages import group_advantages, step_advantages
from vinejax.tools.bench.gradients import (
    MeasuredGradients,
    error_draws,
    gradient_error,
    measure_of,
    reference_error,
)
from vinejax.tools.bench.intervals import Measure

GROUP = 8
Response = tuple[int, ...]


def responses() -> dict[Response, float]:
    """All responses of the chain with their probabilities."""
    found, open_ones = {}, [((), 1.0)]
    while open_ones:
        letters, chance = open_ones.pop()
        if letters[-1:] == (CHAIN.ending,) or len(letters) == CHAIN.length:
            found[letters] = chance
            continue
        moves = CHAIN.moves[letters[-1] if letters else START]
        open_ones += [((*letters, x), chance * moves[x]) for x in range(NUM_LETTERS) if moves[x]]
    return found


def scores(letters: Response) -> np.ndarray:
    """[length, 20] the gradient of each letter's log-probability by the table of logits."""
    found = np.zeros((CHAIN.length, NUM_LETTERS + 1, NUM_LETTERS))
    for t, (before, letter) in enumerate(itertools.pairwise((START, *letters))):
        found[t, before] = np.eye(NUM_LETTERS)[letter] - CHAIN.moves[before]
    return found.reshape(CHAIN.length, -1)


def exact_advantages(letters: Response) -> np.ndarray:
    values = CHAIN.values()
    path = [values[t, y] for t, y in enumerate((START, *letters))]
    path[-1] = CHAIN.rewards[letters[-1]]
    return np.diff(path, append=[path[-1]] * (CHAIN.length - len(letters)))


def true_gradient() -> np.ndarray:
    chances = np.array(list(responses().values()))
    return chances @ np.array([exact_advantages(y) @ scores(y) for y in responses()])


def defined(measure: Measure) -> tuple[float, float, float]:
    """(value, low, high) of a measure that has all three."""
    value, low, high = measure.value, measure.low, measure.high
    assert value is not None and low is not None and high is not None
    return value, low, high


def variance_with_exact_values(noise: float) -> float:
    """n times the variance of ĝ, where `noise`·Var(R | s) is the variance of each state's value.

    An error e_t of the value of state t adds e_t·(score_{t-1} - score_t) to a solution's gradient.
    """
    second = dataclasses.replace(CHAIN, rewards=CHAIN.rewards**2).values() - CHAIN.values() ** 2
    total = 0.0
    for letters, chance in responses().items():
        score = np.concatenate([np.zeros((1, scores(letters).shape[1])), scores(letters)])
        square = np.sum((exact_advantages(letters) @ scores(letters)) ** 2)
        for t, before in enumerate((START, *letters[:-1])):
            square += noise * second[t, before] * np.sum((score[t] - score[t + 1]) ** 2)
        total += chance * square
    return total - np.sum(true_gradient() ** 2)


def variance_of_rloo(n: int) -> float:
    """n times the variance of ĝ: a U-statistic with the kernel (R_a - R_b)(s_a - s_b) / 2."""
    chances = np.array(list(responses().values()))
    rewards = np.array([CHAIN.rewards[y[-1]] for y in responses()])
    whole = np.array([scores(y).sum(axis=0) for y in responses()])
    apart = rewards[:, None] - rewards
    kernel = apart[..., None] * (whole[:, None] - whole) / 2
    of_one = np.einsum("b,abk->ak", chances, kernel)
    mean = chances @ of_one
    np.testing.assert_allclose(mean, true_gradient(), atol=1e-12)
    first = chances @ np.sum((of_one - mean) ** 2, axis=1)
    both = np.einsum("a,b,abk->", chances, chances, (kernel - mean) ** 2)
    return n * (4 * (n - 2) * first + 2 * both) / (n * (n - 1))


def gradients(episodes: list[Episode], estimator: str) -> np.ndarray:
    """[groups, 20] ĝ of each group of solutions."""
    if estimator == "rloo":
        rewards = np.array([e.reward for e in episodes], np.float32)
        groups = np.array([int(e.problem_id) for e in episodes], np.int32)
        of_solution = np.asarray(group_advantages(rewards, groups, "rloo"))
        advantages = np.repeat(of_solution[:, None], CHAIN.length, axis=1)
    elif estimator == "exact":
        advantages = np.array([exact_advantages(tuple(e.response)) for e in episodes])
    else:
        steps = np.array([len(e.step_ends) for e in episodes], np.int32)
        values, earned = np.zeros((2, len(episodes), CHAIN.length), np.float32)
        for i, e in enumerate(episodes):
            values[i, : steps[i]], earned[i, : steps[i]] = e.values, e.rewards
        advantages = np.asarray(step_advantages(values, earned, steps, 1.0))
    by_solution = [a @ scores(tuple(e.response)) for a, e in zip(advantages, episodes, strict=True)]
    return np.array(by_solution).reshape(-1, GROUP, by_solution[0].size).mean(axis=1)


def measured(found: np.ndarray) -> MeasuredGradients:
    g = true_gradient()
    return MeasuredGradients(
        squares=np.sum(found**2, axis=1).tolist(),
        products=(found @ g).tolist(),
        sum_square=float(np.sum(found.sum(axis=0) ** 2)),
    )


@pytest.fixture(scope="module")
def drawn() -> tuple[list[Episode], list[Episode]]:
    """(solutions, the same with values of two continuations each): 1,500 groups."""
    rng = np.random.default_rng(5)
    episodes = CHAIN.episodes(rng, 1500, GROUP)
    cfg = vine_cases.config(k=2, dedup=False)
    return episodes, fill_drawn(episodes, cfg, CHAIN.draw(rng))[0]


@pytest.mark.parametrize(
    ("estimator", "variance"),
    [
        ("exact", variance_with_exact_values(0.0)),
        ("vineppo", variance_with_exact_values(1 / 2)),
        ("rloo", variance_of_rloo(GROUP)),
    ],
)
def test_the_error_is_the_analytic_variance(estimator: str, variance: float, drawn):
    found = gradients(drawn[estimator == "vineppo"], estimator)
    squared = np.sum(true_gradient() ** 2)
    of_estimator = gradient_error(measured(found), g_squared=squared)
    expected = variance / GROUP / squared
    print(f"{estimator}: {of_estimator}, in closed form {expected:.3f}")
    error, low, high = defined(of_estimator.error)
    assert abs(error / expected - 1) < 0.05 and low < expected < high
    _, low, high = defined(of_estimator.scale)
    assert low < 1 < high
    assert of_estimator.bias is not None and abs(of_estimator.bias) < 0.02
    cosine, low, high = defined(of_estimator.cosine)
    assert 0 < low < cosine < high < 1
    assert of_estimator.repeats == 1500


def test_a_scaled_gradient_has_the_same_error(drawn):
    found = gradients(drawn[0][:800], "rloo")
    squared = float(np.sum(true_gradient() ** 2))
    plain, scaled = (gradient_error(measured(x), squared) for x in (found, 2.5 * found))
    for name, factor in (("error", 1.0), ("cosine", 1.0), ("scale", 2.5)):
        one, other = (dataclasses.astuple(getattr(x, name)) for x in (plain, scaled))
        np.testing.assert_allclose(other, factor * np.array(one), rtol=1e-9)
    assert scaled.bias == pytest.approx(plain.bias, rel=1e-9)


def test_a_bias_is_seen(drawn):
    """Half of the gradient's length added at a right angle is a squared bias of 1/4."""
    g = true_gradient()
    beside = np.eye(g.size)[0] - g[0] * g / np.sum(g**2)
    beside *= 0.5 * np.linalg.norm(g) / np.linalg.norm(beside)
    error = gradient_error(measured(gradients(drawn[0], "exact") + beside), float(g @ g))
    assert error.bias == pytest.approx(0.25, abs=0.02)


def test_by_hand():
    """Two repeats (1, 1) and (3, 0) of g = (1, 0): mean square 5.5, mean products g 2."""
    error = gradient_error(
        MeasuredGradients([2.0, 9.0], [1.0, 3.0], sum_square=17.0), g_squared=1.0
    )
    assert error.error.value == pytest.approx(5.5 / 4 - 1)
    assert error.cosine.value == pytest.approx((1 / 2**0.5 + 1) / 2)
    assert error.scale.value == 2
    assert error.bias == pytest.approx(0)  # (1, 1)·(3, 0) = 3 = 1 · 3
    draws = error_draws(MeasuredGradients([2.0, 9.0], [1.0, 3.0], 17.0), 1.0)
    # Of two repeats with replacement: one of them twice, or both.
    assert set(np.round(draws, 9)) == {1.0, 0.0, 0.375}
    assert measure_of(draws).low == 0 and measure_of(draws).high == 1


def test_draws_without_direction_count_as_infinite():
    """With ĝ·g of 3 and -1, draws of the second repeat alone have no error."""
    draws = error_draws(MeasuredGradients([2.0, 4.0], [3.0, -1.0], sum_square=0.0), 1.0)
    defined_ones = set(np.round(draws[np.isfinite(draws)], 9))
    assert defined_ones == {2.0, round(2 / 9 - 1, 9)} and np.isnan(draws).any()
    assert measure_of(draws) == Measure(2.0, 2 / 9 - 1, None)
    assert measure_of(np.array([np.nan, 1.0])) == Measure(None, None, None)


def test_one_repeat_has_no_measure_of_its_bias():
    error = gradient_error(MeasuredGradients([2.0], [1.0], sum_square=2.0), g_squared=1.0)
    assert error.bias is None and error.error == Measure(1.0, None, None)


def test_a_gradient_without_direction_has_no_error():
    error = gradient_error(MeasuredGradients([1.0, 1.0], [-1.0, 0.5], 2.0), g_squared=1.0)
    assert error.error == Measure(None, None, None) and error.bias is None
    assert error.scale.value == -0.25 and error.cosine.value == -0.25


def test_the_reference_knows_its_own_error():
    rng = np.random.default_rng(0)
    g = np.array([3.0, 4.0])
    first, second = g + rng.normal(size=(2, 20000, 2))
    found = reference_error(
        np.mean(np.sum(first**2, axis=1)),
        np.mean(np.sum(second**2, axis=1)),
        np.mean(np.sum(first * second, axis=1)),
    )
    assert found == pytest.approx(1 / 25, rel=0.05)  # each has variance 2, their mean 1
