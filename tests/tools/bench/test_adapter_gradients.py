"""Gradients that the credit bench compares, of a model with adapters."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers import adapter_cases
from helpers import loop_cases as cases

from vinejax.learner.packing import Passes
from vinejax.learner.score import token_logprobs
from vinejax.model.decoder import Params
from vinejax.model.lora import merge_adapters, with_adapters
from vinejax.tools.bench.gradients import policy_gradients


def test_gradients_that_the_credit_bench_compares_are_those_of_the_merged_model():
    base, trained, batch = cases.params(), adapter_cases.adapters(), adapter_cases.rows()
    credit = np.stack(
        [batch.advantages, np.cos(np.arange(batch.mask.size)).reshape(batch.mask.shape)]
    )
    given = adapter_cases.MODEL, trained, batch, credit.astype(np.float32)
    found = policy_gradients(*given, 3, 0.7, Passes(len(batch.mask)), base)

    def total(trained: Params, credit: np.ndarray) -> jax.Array:
        weights = merge_adapters(with_adapters(base, trained), adapter_cases.SCALE)
        logprobs, _ = token_logprobs(cases.model(), weights, batch, 0.7)
        return jnp.sum(jnp.where(batch.mask, credit * logprobs, 0.0)) / 3

    expected = jax.jit(jax.vmap(jax.grad(total), (None, 0)))(trained, credit)
    cases.assert_close(found, expected, 10 * cases.ROUNDING)
