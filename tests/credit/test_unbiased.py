"""The bias of values and of the policy gradient, on a chain with known values.

Unbiasedness can be tested only over many draws of the solutions, because within a group the mean of
the others falls when a solution's own reward rises. Errors of one problem's solutions are
correlated, so standard errors are taken over problems.
"""

from typing import Any

import numpy as np
import pytest
from helpers.chain_cases import CHAIN, NUM_LETTERS, START, Bias, measure
from helpers.vine_cases import config


def bias_of(
    problems: int,
    group: int = 4,
    seed: int = 0,
    k: int = 2,
    **values: Any,
) -> Bias:
    found = measure(CHAIN, config(k=k, **values), problems, group, seed)
    values_in_errors, gradient_in_errors = found.in_errors
    print(
        f"{values}, {problems} x {group}: {found.drawn:.2f} continuations per solution;"
        f" values off by up to {np.abs(found.values).max():.4f} ({values_in_errors:.1f} SE),"
        f" gradient by {np.abs(found.gradient).max():.4f} ({gradient_in_errors:.1f} SE)"
    )
    return found


def test_the_chain_has_the_values_that_its_solutions_earn():
    rng, values = np.random.default_rng(0), CHAIN.values()
    for prefix in ([], [0], [0, 1], [0, 1, 2], [0, 1, 2, 2]):
        ends = np.array([x[-1] for x in CHAIN.finish(rng, [prefix] * 20000)])
        rewards = CHAIN.rewards[ends]
        truth = values[len(prefix), prefix[-1] if prefix else START]
        assert abs(rewards.mean() - truth) < 4 * rewards.std() / np.sqrt(20000)
    responses = CHAIN.finish(rng, [[]] * 100)
    assert {len(x) for x in responses} == {2, 3, 4, 5}
    assert all(3 not in x[:-1] and (x[-1] == 3 or len(x) == 5) for x in responses)
    # The same by an enumeration of all responses.
    total = np.zeros((CHAIN.length, NUM_LETTERS))
    stack = [((START,), 1.0)]
    while stack:
        letters, chance = stack.pop()
        t = len(letters) - 1
        if letters[-1] == CHAIN.ending or t == CHAIN.length:
            for i, (before, letter) in enumerate(zip(letters, letters[1:], strict=False)):
                advantage = values[i + 1, letter] - values[i, before]
                total[i] += chance * advantage * (np.eye(4)[letter] - CHAIN.moves[before])
            continue
        moves = CHAIN.moves[letters[-1]]
        stack += [((*letters, x), chance * moves[x]) for x in range(NUM_LETTERS) if moves[x]]
    np.testing.assert_allclose(CHAIN.gradient(), total, atol=1e-12)


UNBIASED: dict[str, dict[str, Any]] = {
    "uniform": {},
    "reuse": {"reuse": True},
    "merge": {"reuse": True, "merge": 2},
    "backup": {"reuse": True, "backup": True},
    "roles": {"credit": {"lambda_": 0.7, "baseline_lambda": 0.4}},
    "roles with backup": {
        "reuse": True,
        "backup": True,
        "credit": {"lambda_": 0.5, "baseline_lambda": 0.5},
    },
    "roles of states that are merged": {
        "merge": 2,
        "credit": {"lambda_": 1.0, "baseline_lambda": 1.0},
    },
}


@pytest.mark.parametrize("rule", UNBIASED)
def test_few_draws(rule: str):
    assert bias_of(problems=200, **UNBIASED[rule]).worst < 4


@pytest.mark.slow
@pytest.mark.parametrize("rule", UNBIASED)
def test_unbiased_rules(rule: str):
    """5,000 solutions, 4 per problem, show no bias."""
    found = bias_of(problems=1250, seed=1, **UNBIASED[rule])
    assert found.value_errors.max() < 1.4e-2 and found.gradient_errors.max() < 6e-3
    assert found.worst < 4


PRIORS = {
    "off by .3": lambda truth: truth + 0.3,
    "random": lambda truth: np.random.default_rng(1).random(truth.shape),
}


@pytest.mark.first(2)
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("allocation", ["helpers.chain_cases.every_second", "uniform"])
def test_a_learned_value_may_be_wrong(prior: str, allocation: str):
    cfg = config(k=1, allocation=allocation, credit={"lambda_": 0.7, "baseline_lambda": 0.3})
    found = measure(CHAIN, cfg, 1250, 4, 3, prior=PRIORS[prior])
    assert found.in_errors[1] < 4


# Biased rules, with the bias of values and of the gradient measured with 10,000 solutions (see -s)
BIASED: dict[str, dict[str, Any]] = {
    "bisection": {"allocation": "bisection"},  # 0.013, 0.012
    # A token's baseline is the value of a state that was kept because of later tokens.
    "spread": {"num_states": 1},  # 0 (for the states that it keeps), 0.012
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", BIASED)
def test_biased_rules_are_off_by_little(rule: str):
    """The bias is below 0.04; the reward is 1, the gradient 0.18, the standard errors 0.003."""
    found = bias_of(problems=1250, k=9, **BIASED[rule])
    assert np.abs(found.values).max() < 0.04 and np.abs(found.gradient).max() < 0.04
