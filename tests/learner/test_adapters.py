"""Updates of adapters: their gradient, and the weights that they do not change."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.applied import policy_objective

from vinejax.core.settings import PROJECTIONS, MeshConfig
from vinejax.core.types import Batch
from vinejax.learner.packing import Passes
from vinejax.learner.score import token_logprobs
from vinejax.learner.update import fresh_state, gradients, update_step
from vinejax.model.config import Compute
from vinejax.model.decoder import Params
from vinejax.model.lora import fresh_adapters, merge_adapters, with_adapters
from vinejax.model.sharding import make_mesh
from vinejax.tools.bench.gradients import policy_gradients

SCALE = 0.5
MODEL = dataclasses.replace(cases.model(), compute=Compute(lora_scale=SCALE))


def adapters() -> Params:
    """Adapters whose two factors are both different from 0."""
    mesh = make_mesh(MeshConfig(1, 1, 1))
    fresh = fresh_adapters(MODEL, mesh, 2, PROJECTIONS)

    def moved(x: np.ndarray) -> np.ndarray:
        return x + 0.1 * np.cos(np.arange(x.size, dtype=np.float32)).reshape(x.shape)

    return jax.tree.map(moved, jax.device_get(fresh))


def rows() -> Batch:
    cfg = methods.config("vineppo")
    of_method = methods.credit(cfg)
    return methods.batch()._replace(advantages=of_method.advantages, mask=of_method.mask)


@pytest.mark.first
@pytest.mark.parametrize("microbatch", [2, None])
def test_the_gradient_is_that_of_the_merged_model(microbatch: int | None):
    cfg = methods.config("vineppo", ppo={"microbatch": microbatch})
    base, trained = cases.params(), adapters()
    objective = policy_objective(MODEL, cfg)
    found, sums = jax.jit(gradients, static_argnums=0)(objective, trained, rows(), base)

    plain = dataclasses.replace(policy_objective(cases.model(), cfg), microbatch=None)

    def total(trained: Params, minibatch: Batch) -> jax.Array:
        batch, loss = plain.loss_over(minibatch)
        return loss(merge_adapters(with_adapters(base, trained), SCALE), batch)[0]

    cases.assert_close(found, jax.jit(jax.grad(total))(trained, rows()), 10 * cases.ROUNDING)
    assert sums.tokens == rows().mask.sum()


def test_gradients_that_the_credit_bench_compares_are_those_of_the_merged_model():
    base, trained, batch = cases.params(), adapters(), rows()
    credit = np.stack(
        [batch.advantages, np.cos(np.arange(batch.mask.size)).reshape(batch.mask.shape)]
    )
    found = policy_gradients(
        MODEL, trained, batch, credit.astype(np.float32), 3, 0.7, Passes(len(batch.mask)), base
    )

    def total(trained: Params, credit: np.ndarray) -> jax.Array:
        weights = merge_adapters(with_adapters(base, trained), SCALE)
        logprobs, _ = token_logprobs(cases.model(), weights, batch, 0.7)
        return jnp.sum(jnp.where(batch.mask, credit * logprobs, 0.0)) / 3

    expected = jax.jit(jax.vmap(jax.grad(total), (None, 0)))(trained, credit)
    cases.assert_close(found, expected, 10 * cases.ROUNDING)


def test_an_update_changes_the_adapters_alone():
    base, trained = cases.params(), adapters()
    mesh, optimizer = make_mesh(MeshConfig(1, 1, 1)), optax.adam(1e-2)
    state = fresh_state(trained, optimizer, mesh)
    objective = policy_objective(MODEL, methods.config("vineppo"))
    state, update = update_step(objective, optimizer, state, rows(), base)
    assert update.accepted and update.grad_norm > 0
    cases.assert_equal(base, cases.params())  # neither changed nor donated
    before = cases.leaves(trained)
    assert all((x != before[name]).any() for name, x in cases.leaves(state.params).items())
    assert cases.leaves(state.opt_state[0].mu).keys() == before.keys()
