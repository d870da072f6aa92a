"""MDPO's loss and its penalty over a run, compared with formulas in NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.applied import policy_objective, stand_in

from vinejax.contrib.methods import mdpo
from vinejax.core.types import Rollout, RunState
from vinejax.credit.assign import Credit
from vinejax.learner.batch import collate
from vinejax.methods import base
from vinejax.session.iteration import Iteration

ROWS = collate(methods.episodes(), rows=8)
OBJECTIVE = policy_objective(cases.model(), methods.config("mdpo"))


@jax.jit
def total_and_loss(logprobs: Any, old: Any, advantages: Any, penalty: Any) -> Any:
    """((the sum of the loss, the loss), the gradient)."""
    rows = ROWS._replace(old_logprobs=old, advantages=advantages, loss_extra=penalty)

    def total(x: Any) -> Any:
        found = mdpo.loss(x, rows, OBJECTIVE).loss
        return found.sum(), found

    return jax.value_and_grad(total, has_aux=True)(logprobs)


def results(moved: Any, advantages: Any, penalty: Any) -> tuple[np.ndarray, np.ndarray]:
    """(loss, gradient) of tokens whose log-ratio is `moved`."""
    old = np.full(ROWS.mask.shape, -1.5, np.float32)
    arrays = (jnp.float32(np.broadcast_to(x, old.shape)) for x in (advantages, penalty))
    (_, loss), gradient = total_and_loss(jnp.float32(old + moved), jnp.asarray(old), *arrays)
    return np.asarray(loss), np.asarray(gradient)


def test_the_loss_and_its_gradient_are_the_formulas():
    rng = np.random.default_rng(0)
    moved, advantages = rng.normal(0, 0.7, (2, *ROWS.mask.shape))
    ratio, penalty = np.exp(moved), 2.5
    loss, gradient = results(moved, advantages, penalty)
    expected = -advantages * ratio + penalty * (ratio * np.log(ratio) - ratio + 1)
    np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-5)
    slope = ratio * (penalty * moved - advantages)
    np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-5)


def test_the_gradient_ends_at_the_step_and_is_reinforce_at_the_sampler():
    advantages = np.random.default_rng(1).normal(size=ROWS.mask.shape)
    np.testing.assert_allclose(results(0.0, advantages, 3.0)[1], -advantages, atol=1e-6)
    at_step = results(0.5 * advantages, advantages, 2.0)[1]
    np.testing.assert_allclose(at_step, 0.0, atol=2e-5)
    beyond = results(np.float32(90.0), advantages, 2.0)  # where e^moved overflows float32
    assert all(np.isfinite(x).all() for x in beyond)


def test_the_penalty_is_the_divergence_from_the_sampler():
    """Weighted by π_old its mean is Σ π·log(π/π_old), and each sample's part is at least 0."""
    old, new = np.random.default_rng(2).dirichlet(np.ones(5), 2)
    moved = np.zeros(ROWS.mask.shape)
    moved[0, :5] = np.log(new / old)
    parts = results(moved, 0.0, 1.0)[0][0, :5]
    assert (parts >= 0).all()
    assert old @ parts == pytest.approx((new * np.log(new / old)).sum(), rel=1e-4)


def test_the_step_falls_linearly_over_the_run(monkeypatch: pytest.MonkeyPatch):
    cfg = methods.config("mdpo", mdpo={"step": 0.5}, iterations=4)
    first = methods.credit(cfg, rows=ROWS)
    expected = methods.credit(methods.config("grpo"), rows=ROWS)
    np.testing.assert_array_equal(first.advantages, expected.advantages)
    given: list[Credit] = []
    monkeypatch.setattr(
        base, "update", lambda _, state, rollout, credit: given.append(credit) or state
    )
    state, rollout = stand_in(RunState), stand_in(Rollout)
    for number in range(4):
        iteration = stand_in(Iteration, number=number, cfg=cfg)
        mdpo.update(iteration, state, rollout, first)
        penalty = np.asarray(given[-1].loss_extra)
        np.testing.assert_allclose(1 / penalty, 0.5 * (1 - number / 4), rtol=1e-6)


def test_packing_changes_no_gradient():
    expected, _ = methods.gradient_and_sums("mdpo", 2)
    found, _ = methods.gradient_and_sums("mdpo", 2, packed=True)
    cases.assert_close(found, expected, cases.ROUNDING)
