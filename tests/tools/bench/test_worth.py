"""Worth: the squared uncentred correlation of a credit with the true step advantages."""

import numpy as np
from helpers import vine_cases as cases

from vinejax.learner.batch import collate, step_layout
from vinejax.tools.bench.worth import TrueSteps, credit_of_steps, joined, true_steps, worth_of


def chance(size: int, noise: float) -> tuple[np.ndarray, TrueSteps]:
    """Exact credit of variance 1 with an error of its own, and a truth with an error of .3."""
    rng = np.random.default_rng(0)
    exact = rng.normal(size=size)
    credit = exact + noise * rng.normal(size=size)
    measured = exact + 0.3 * rng.normal(size=size)
    problems = [str(i % 40) for i in range(size)]
    return credit, TrueSteps(measured, np.full(size, 0.09), problems)


def test_worth_is_the_share_of_signal_in_the_credit():
    """1 / (1 + noise²), whatever the scale of the credit and the error of the truth."""
    for noise in (0.0, 1.0, 2.0):
        credit, truth = chance(40_000, noise)
        expected = 1 / (1 + noise**2)
        for found in (worth_of(credit, truth), worth_of(-5 * credit, truth)):
            assert found.value is not None and abs(found.value - expected) < 0.02
            assert found.low is not None and found.high is not None
            assert found.low < expected + 0.01 and expected - 0.01 < found.high


def test_without_signal_there_is_no_worth():
    _, truth = chance(40, 0.0)
    nothing = truth._replace(advantages=np.zeros(40))
    assert worth_of(np.ones(40), nothing).value is None
    assert worth_of(np.zeros(40), truth).value is None


def test_steps_of_solutions_and_their_credit():
    """Values of every step: A_c and its variance; a credit's mean over the tokens of each step."""
    episodes, _ = cases.fill(
        [cases.episode(cases.RIGHT), cases.episode(cases.WRONG)], cases.config()
    )
    batch = collate(episodes, 2)
    steps = step_layout(batch, episodes)
    truth = true_steps(steps, episodes, 1.0)
    values = [cases.values_of(one) for one in episodes]
    ends = [np.append(v[1:], one.reward) for v, one in zip(values, episodes, strict=True)]
    expected = np.concatenate([after - v for v, after in zip(values, ends, strict=True)])
    np.testing.assert_allclose(truth.advantages, expected, atol=1e-6)
    errors = [
        np.array([*(one.value_errors if one.value_errors is not None else ()), 0.0])
        for one in episodes
    ]
    variances = np.concatenate([x[:-1] ** 2 + x[1:] ** 2 for x in errors])
    np.testing.assert_allclose(truth.variances, variances, rtol=1e-6)
    assert truth.problems == [cases.PROBLEM[0].id] * len(expected)
    advantages = np.random.default_rng(1).normal(size=batch.tokens.shape).astype(np.float32)
    found = credit_of_steps(advantages, steps)
    means = [
        advantages[row, len(one.prompt) :][start:end].mean()
        for row, one in enumerate(episodes)
        for start, end in zip([0, *one.step_ends], one.step_ends, strict=False)
    ]
    np.testing.assert_allclose(found, means, rtol=1e-5, atol=1e-6)
    both = joined([truth, truth])
    assert both is not None and len(both.advantages) == 2 * len(expected) == len(both.problems)
    assert joined([]) is None
