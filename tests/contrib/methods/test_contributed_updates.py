"""Losses, advantages and gradients of contributed methods, as tests/learner has the core's."""

import numpy as np
import pytest
from helpers import eight_devices
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.applied import applied, policy_objective

from vinejax.contrib.methods.equations.sequence_losses import opmd
from vinejax.contrib.names import METHODS
from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.learner.batch import collate, step_layout
from vinejax.methods.known import find_method
from vinejax.rl.advantages import group_advantages

# `popri` has the update of the core's `dpo_positive`.
POLICY_GRADIENTS = [name for name in METHODS if find_method(name).is_policy_gradient]
PROGRAMS = [
    name
    for name in methods.kinds_of_update([*methods.PROGRAMS[:-1], *POLICY_GRADIENTS])
    if name in METHODS
]


@pytest.mark.slow
def test_devices_packing_microbatches_and_chunks_change_no_method():
    """Of each kind of update that the core's methods do not have."""
    assert {"opmd", "asymre"} <= set(PROGRAMS)
    program = f"from helpers import over_devices\n\nover_devices.check({PROGRAMS!r})"
    assert eight_devices.printed("-c", program) == PROGRAMS


def test_packing_changes_no_gradient_of_opmd():
    expected, _ = methods.gradient_and_sums("opmd", 2, opmd={"tau": 0.1})
    found, _ = methods.gradient_and_sums("opmd", 2, packed=True, opmd={"tau": 0.1})
    cases.assert_close(found, expected, cases.ROUNDING)


# --- losses and advantages, against loops


def test_opmd_equals_the_loop():
    rng = np.random.default_rng(0)
    logprobs, old, advantages = rng.normal(-1, 0.5, (3, 4, 6))
    mask = np.arange(6) < np.array([6, 1, 0, 4])[:, None]
    nan_off = [np.where(mask, x, np.nan) for x in (logprobs, old, advantages)]
    found = np.asarray(opmd(*nan_off, mask, 0.7, np.ones((4, 6), np.int32)))
    assert not found[~mask].any()
    for b in range(4):
        at = mask[b]
        moved = (logprobs - old)[b][at].sum()
        whole = -(advantages * logprobs)[b][at].sum() + 0.35 * moved**2
        np.testing.assert_allclose(found[b].sum(), whole, rtol=1e-4, atol=1e-6)


def test_means_of_groups_are_the_baselines_of_opmd_and_asymre():
    rewards = np.array(methods.REWARDS)
    mean = np.repeat([rewards[:4].mean(), rewards[4:].mean()], 4)
    for method, shift in (("opmd", 0.0), ("asymre", -0.1)):
        found = methods.credit(methods.config(method))
        expected = methods.spread(rewards - (mean + shift))
        np.testing.assert_allclose(found.advantages, expected, atol=1e-6)


def test_gdpo_with_one_reward_is_grpo_normalised_over_the_batch():
    cfg = methods.config("gdpo")
    rewards = np.array(methods.REWARDS)
    per_group = group_advantages(rewards, np.repeat([0, 1], 4), "grpo", ddof=1, eps=1e-4)
    expected = np.asarray(per_group) / (np.std(per_group, ddof=1) + 1e-4)
    np.testing.assert_allclose(methods.credit(cfg).advantages, methods.spread(expected), atol=1e-6)


@pytest.mark.parametrize("method", ["opmd", "asymre"])
def test_kl_in_the_reward_of_a_solution(method: str):
    """As methods/test_adaptive_kl.py has it of the core's methods."""
    batch = methods.batch()
    k1 = np.where(batch.mask, np.asarray(batch.old_logprobs) - np.asarray(batch.ref_logprobs), 0)
    cfg = applied(methods.config(method, kl={"place": "reward", "coef": 0.3}))
    paid = np.array(methods.REWARDS) - 0.3 * k1.sum(axis=1)
    mean = np.repeat([paid[:4].mean(), paid[4:].mean()], 4)
    expected = methods.spread(paid - mean + (0.1 if method == "asymre" else 0.0))
    np.testing.assert_allclose(methods.credit(cfg).advantages, expected, atol=1e-5)


def test_a_loss_of_its_own_is_no_loss_by_name():
    assert applied(Config(method="opmd")).ppo.loss == "method"


def test_drpo_weighs_a_group_by_length_and_likelihood():
    """The coefficients of 100, 300, 200 and 400 tokens of 500, times four solutions."""
    lengths, means = (1, 3, 2, 4), [-0.2, -0.4, -0.3, -0.9]
    solutions = [cases.episode([1], [3] * n, reward=float(n % 2)) for n in lengths]
    rows = collate(solutions, rows=4)
    old = np.where(rows.mask, np.array(means)[:, None], 0.0)
    rollout = Rollout(
        solutions, rows._replace(old_logprobs=old), step_layout(rows, solutions), None
    )
    credit = find_method("drpo").credit
    assert credit is not None
    found = credit(rollout, methods.config("drpo", sample={"max_tokens": 5})).advantages
    expected = 4 * np.array([0.982014, 0.017986, -0.645656, -0.354344])
    np.testing.assert_allclose(found, rows.mask * expected[:, None], atol=1e-5)


# --- identities


@pytest.mark.slow
def test_asymre_and_opmd_at_the_policy_that_sampled_are_reinforce():
    """Without the shift, and where the square's gradient is 0."""
    batch = methods.at_ratio_1(methods.batch())
    rewards = np.array(methods.REWARDS)
    mean = np.repeat([rewards[:4].mean(), rewards[4:].mean()], 4)
    expected = methods.reinforce_gradient(methods.spread(rewards - mean))
    for method, section in (("asymre", {"asymre": {"shift": 0.0}}), ("opmd", {})):
        cfg = methods.config(method, kl={"coef": 0.0}, **section)
        rows = batch._replace(advantages=methods.credit(cfg, rows=batch).advantages)
        grads, _ = methods.grads_of(policy_objective(cases.model(), cfg), cases.params(), rows)
        cases.assert_close(grads, expected, cases.ROUNDING)
