"""Updates of adapters: their gradient, and the weights that they do not change."""

import dataclasses

import jax
import optax
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.adapter_cases import MODEL, SCALE, adapters, rows
from helpers.applied import policy_objective

from vinejax.core.settings import MeshConfig
from vinejax.core.types import Batch
from vinejax.learner.update import fresh_state, gradients, update_step
from vinejax.model.decoder import Params
from vinejax.model.lora import merge_adapters, with_adapters
from vinejax.model.sharding import make_mesh


@pytest.mark.slow
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


@pytest.mark.slow
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
