"""The mass and the entropy of the likeliest tokens, without all logits at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import eight_devices

from vinejax.model.chunked_softmax import OutputLayer
from vinejax.model.token_logprobs import likeliest


def of_probabilities(p: list[float], count: int, chunk: int | None = None) -> tuple[float, float]:
    """From hidden states of 1 and an output matrix of one row, the logits."""
    x, table = jnp.ones((1, 1, 1)), jnp.log(jnp.array([p]))
    output = OutputLayer("head", None, 1.0, chunk)
    found = jax.jit(likeliest, static_argnums=(2, 3, 4))(x, table, output, None, count)
    return float(found[0][0, 0]), float(found[1][0, 0])


@pytest.mark.parametrize("chunk", [None, 4, 1])
def test_the_vector_of_likelihood_over_optimisation(chunk: int | None):
    """The k likeliest as they are, not made to sum to 1."""
    p = [0.1, 0.05, 0.5, 0.1, 0.2, 0.05]
    assert of_probabilities(p, 3, chunk) == pytest.approx((0.8, 0.89872), abs=2e-6)


def test_more_than_there_are_are_all():
    p = [0.5, 0.25, 0.25]
    entropy = -float(np.sum(p * np.log(p)))
    assert of_probabilities(p, 5) == pytest.approx((1.0, entropy), abs=1e-6)


DEVICES = """
import dataclasses
import jax, numpy as np
from helpers import loop_cases as cases
from vinejax.learner.packing import Passes
from vinejax.learner.batch import collate
from vinejax.learner.score import scores_and_spread
from vinejax.model.sharding import mesh_over, param_shardings

batch = collate(cases.random_episodes([(3, 9), (5, 4), (2, 7)] * 3), rows=8)
whole = scores_and_spread(cases.model(), cases.params(), batch, 0.8, Passes(8), 3)
logits = np.asarray(cases.logits(cases.params(), batch.tokens)) / 0.8
p = np.exp(logits - logits.max(-1, keepdims=True))
p = np.sort(p / p.sum(-1, keepdims=True))[:, :-1, ::-1]
mask, top = batch.mask[:, 1:], p[..., :3]
expected = (-p * np.log(p)).sum(-1), top.sum(-1), (-top * np.log(top)).sum(-1)
for found, wanted in zip(whole[1:], expected, strict=True):
    np.testing.assert_allclose(found[:, 1:][mask], wanted[mask], rtol=1e-4)
    assert not found[~batch.mask].any()
for sizes in ((2, 2, 2), (1, 8, 1)):
    mesh = mesh_over(sizes, jax.devices())
    model = dataclasses.replace(cases.model(), mesh=mesh)
    params = jax.device_put(cases.params(), param_shardings(mesh, cases.params()))
    for packed in (False, True):
        found = scores_and_spread(model, params, batch, 0.8, Passes(8, packed), 3)
        for x, y in zip(found, whole, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
print("equal")
"""


@pytest.mark.slow
def test_scores_with_their_spread_on_a_mesh():
    assert eight_devices.printed("-c", DEVICES) == ["equal"]
