"""The KL's coefficient follows a target; the KL in the reward."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers import rl_oracles as oracle
from helpers.applied import applied, policy_objective, stand_in

from vinejax.core.types import Batch, Rollout, RunState, TrainState
from vinejax.credit.assign import Credit, rewards_with_kl, token_rewards
from vinejax.learner.batch import step_layout
from vinejax.learner.update import gradients
from vinejax.methods.adaptive_kl import KEPT, adapted, adaptive, composed, fresh
from vinejax.methods.base import Method
from vinejax.methods.known import find_method
from vinejax.runtime.compiles import num_compiles
from vinejax.session.iteration import Iteration

grads_of = jax.jit(gradients, static_argnames="objective")


def rollout(**fields) -> Rollout:
    batch, solutions = methods.batch(), methods.episodes()
    return Rollout(solutions, batch, step_layout(batch, solutions), **fields)


def moved() -> np.ndarray:
    """f64[8, T] log(π_old / π_ref), 0 off the response."""
    batch = methods.batch()
    difference = np.asarray(batch.old_logprobs, np.float64) - np.asarray(batch.ref_logprobs)
    return np.where(batch.mask, difference, 0)


def scored_as(batch: Batch) -> Callable[..., Rollout]:
    """Stands in for a method's scoring."""
    return lambda *_: rollout()._replace(batch=batch)


def unmoved(iteration: Iteration, state: RunState, *_: object) -> RunState:
    """Stands in for a method's update."""
    return state


def test_the_coefficient_follows_the_target():
    """As in the paper, with K_β = n / horizon; the error is cut at a fifth."""
    assert adapted(0.2, 6.0, 6.0, 0.1) == 0.2
    assert adapted(0.2, 6.6, 6.0, 0.1) == pytest.approx(0.2 * (1 + 0.1 * 0.1))
    assert adapted(0.2, 60.0, 6.0, 0.1) == pytest.approx(0.2 * 1.02)
    assert adapted(0.2, 0.0, 6.0, 0.1) == pytest.approx(0.2 * 0.98)
    cfg = applied(methods.config("grpo", kl={"coef": 0.2, "target": 2.0, "horizon": 80.0}))
    batch = methods.batch()
    near = batch._replace(ref_logprobs=batch.old_logprobs - jnp.float32(0.35))  # off it too
    method = composed(Method(None, score=scored_as(near), update=unmoved), cfg)
    iteration = stand_in(Iteration, cfg=cfg, metrics={})
    state = RunState(stand_in(TrainState), options=fresh(cfg))
    found = method.score(iteration, state, [])
    state = method.update(iteration, state, found, Credit(batch.advantages))
    measured = 0.35 * sum(r for _, r in methods.LENGTHS) / 8
    error = measured / 2.0 - 1
    assert 0.01 < error < 0.2, "the case is cut: nothing is compared"
    assert found.kl_coef == 0.2 and iteration.metrics["kl/coef"] == 0.2
    assert iteration.metrics["kl/response"] == pytest.approx(measured, rel=1e-5)
    assert float(state.options[KEPT]) == pytest.approx(0.2 * (1 + error * 0.1), rel=1e-6)


def test_an_iteration_of_many_responses_changes_the_coefficient_by_a_fifth():
    """Eight responses are 16 horizons; the KL is 0, below the target, in every iteration."""
    cfg = applied(methods.config("grpo", kl={"coef": 0.2, "target": 1.0, "horizon": 0.5}))
    batch = methods.batch()
    still = batch._replace(ref_logprobs=batch.old_logprobs)
    method = composed(Method(None, score=scored_as(still), update=unmoved), cfg)
    state = RunState(stand_in(TrainState), options=fresh(cfg))
    for number in range(1, 5):
        iteration = stand_in(Iteration, cfg=cfg, metrics={})
        scored = method.score(iteration, state, [])
        state = method.update(iteration, state, scored, Credit(batch.advantages))
        assert float(state.options[KEPT]) == pytest.approx(0.2 * 0.8**number)


def test_a_method_keeps_its_own_update_and_its_objective_adapts():
    cfg = applied(methods.config("grpo", kl={"coef": 0.2, "target": 1.0}))
    given: list[Credit] = []

    def own(iteration: Iteration, state: RunState, rollout: Rollout, credit: Credit) -> RunState:
        given.append(credit)
        return state

    method = composed(dataclasses.replace(find_method("grpo"), update=own), cfg)
    iteration, credit = stand_in(Iteration, cfg=cfg, metrics={}), Credit(0)
    state = RunState(stand_in(TrainState), options=fresh(cfg))
    state = method.update(iteration, state, rollout(kl_coef=0.2), credit)
    assert given == [credit] and state.options[KEPT] != 0.2
    objective = find_method("grpo").objective(cases.model(), cfg)
    assert method.objective(cases.model(), cfg) == adaptive(objective) != objective


@pytest.mark.parametrize("share", [0.01, 0.2, 1.0, 4.99, 5.0, 5.12, 1e6])
@pytest.mark.parametrize("found", [-3.0, 0.0, 0.5, 1.0, 2.0, 1e9])
def test_the_coefficient_stays_positive_and_changes_by_a_fifth_at_most(share: float, found: float):
    """However many responses an iteration has, and whatever the sign of the estimated KL."""
    coef = 0.1
    for _ in range(50):
        after = adapted(coef, found, 1.0, share)
        assert 0.8 * coef * 0.999 <= after <= 1.2 * coef * 1.001
        assert np.sign(after - coef) == np.sign(found - 1.0)
        coef = after


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("microbatch", [1, 4, None])
@pytest.mark.parametrize("coef", [0.3, 1e-9, 0.0, -0.2])
def test_every_layout_of_rows_has_the_same_coefficient(
    packed: bool, microbatch: int | None, coef: float
):
    """One scalar of the iteration: neither padding nor empty rows have a part in it."""
    batch = jax.device_get(methods.batch())
    cfg = methods.config("grpo", kl={"coef": 0.5}, ppo={"microbatch": microbatch})
    objective = adaptive(dataclasses.replace(policy_objective(cases.model(), cfg), packed=packed))
    rows, found = objective.pack(objective.rows_of(batch, rollout(kl_coef=coef)))
    assert found.shape == () and found == np.float32(coef)
    is_moved = not np.array_equal(rows.segment_ids, batch.segment_ids)
    assert is_moved == (packed and objective.microbatch != len(batch.mask))


@pytest.mark.slow
@pytest.mark.parametrize("packed", [True, False])
def test_a_coefficient_of_the_rows_is_that_of_the_objective(packed: bool):
    """In the same program for all coefficients, in microbatches."""
    cfg = methods.config("grpo", kl={"coef": 0.3}, ppo={"microbatch": 4})
    batch = jax.device_get(methods.batch())
    batch = batch._replace(advantages=np.where(batch.mask, np.float32(0.5), 0))
    plain = dataclasses.replace(policy_objective(cases.model(), cfg), packed=packed)
    before = None
    for coef in (0.3, 0.7, -0.2):
        expected, _ = grads_of(
            dataclasses.replace(plain, kl_coef=coef), cases.params(), plain.pack(batch)
        )
        objective = adaptive(plain)
        rows = objective.rows_of(batch, rollout(kl_coef=coef))
        params, rows = cases.params(), objective.pack(rows)
        count = num_compiles()
        found, _ = grads_of(objective, params, rows)
        assert before is None or num_compiles() == count
        cases.assert_close(found, expected, cases.ROUNDING)
        if before is not None:
            with pytest.raises(AssertionError):
                cases.assert_close(found, before, cases.ROUNDING)
        before = found


def test_without_a_target_the_objective_stays():
    cfg, batch = methods.config("grpo"), methods.batch()
    objective = policy_objective(cases.model(), cfg)
    assert objective.rows_of(batch, rollout()) is batch
    plain = find_method("grpo")
    assert composed(plain, applied(cfg)) is plain
    inside = policy_objective(cases.model(), methods.config("grpo", kl={"place": "reward"}))
    assert inside.kl_coef == 0 and adaptive(inside) is inside


@pytest.mark.parametrize("method", ["grpo", "rloo", "dr_grpo"])
def test_kl_in_the_reward_of_a_solution(method: str):
    """TRL's RLOO: r - coef·Σ_t k1_t, before solutions are compared."""
    cfg = applied(methods.config(method, kl={"place": "reward", "coef": 0.3}))
    expected = np.array(methods.REWARDS) - 0.3 * moved().sum(axis=1)
    np.testing.assert_allclose(rewards_with_kl(rollout(), cfg), expected, atol=1e-5)
    double = rewards_with_kl(rollout(kl_coef=0.6), cfg)  # an adaptive one
    np.testing.assert_allclose(double, expected - 0.3 * moved().sum(axis=1), atol=1e-5)
    advantages = np.asarray(methods.credit(cfg).advantages)
    mask = np.asarray(methods.batch().mask)
    first = advantages[np.arange(8), mask.argmax(axis=1)]
    groups = np.arange(8) // 4
    if method in ("grpo", "rloo"):
        by_group = oracle.group_advantages(expected, groups, method)
        np.testing.assert_allclose(first, by_group, atol=1e-5)
    else:
        mean = np.repeat([expected[:4].mean(), expected[4:].mean()], 4)
        np.testing.assert_allclose(first, expected - mean, atol=1e-5)


def test_kl_in_the_rewards_of_tokens():
    cfg = applied(methods.config("ppo", kl={"place": "reward", "coef": 0.3}))
    plain = applied(methods.config("ppo"))
    found = token_rewards(rollout(), plain) - token_rewards(rollout(), cfg)
    np.testing.assert_allclose(found, 0.3 * moved(), atol=1e-6)
