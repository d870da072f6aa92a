"""The gradients of several estimators, with and without labels, against a plain loop."""

from typing import Any

import jax
import numpy as np
import pytest
from helpers import loop_cases as cases

from vinejax.core.types import Labels
from vinejax.credit.labels import LabelRows, key_of, label_keys
from vinejax.learner.batch import collate
from vinejax.learner.packing import Passes
from vinejax.tools.bench.gradients import inner_products, joined_labels, policy_gradients

LENGTHS = [(4, 3), (2, 5), (3, 1), (5, 21), (3, 8)]


def labels_of(batch: Any, seed: int, count: int) -> Labels:
    """Labels at trained tokens, one at most at each."""
    rng = np.random.default_rng(seed)
    place = np.sort(rng.choice(np.flatnonzero(batch.mask), count, replace=False))
    token = (batch.tokens.reshape(-1)[place] + rng.integers(1, cases.VOCAB, count)) % cases.VOCAB
    rows = LabelRows.of(batch, key_of(place, token))
    coefficients = rows.array(rng.normal(size=count), np.float32)
    return rows.labels._replace(coefficients=coefficients)


@pytest.mark.slow
@pytest.mark.parametrize("passes", [Passes(2), Passes(2, packed=True)])
def test_the_gradient_is_that_of_a_plain_loop(passes: Passes):
    batch = collate(cases.random_episodes(LENGTHS), 2)
    rng = np.random.default_rng(0)
    credit = rng.normal(size=(3, *batch.mask.shape)).astype(np.float32)
    labels = [labels_of(batch, 1, 24), None, labels_of(batch, 2, 5)]
    gradients = policy_gradients(
        cases.model(),
        cases.params(),
        batch,
        advantages=credit,
        solutions=3,
        temperature=0.7,
        passes=passes,
        labels=labels,
    )

    def objective(params: Any, e: int) -> Any:
        logprobs = jax.nn.log_softmax(cases.logits(params, batch.tokens) / 0.7)
        total = 0.0
        for row, column in zip(*np.nonzero(batch.mask), strict=True):
            own = batch.tokens[row, column]
            total += credit[e, row, column] * logprobs[row, column - 1, own]
        if labels[e] is None:
            return total / 3
        for row, n in zip(*np.nonzero(labels[e].position), strict=True):
            at, token = labels[e].position[row, n], labels[e].token[row, n]
            total += labels[e].coefficients[row, n] * logprobs[row, at - 1, token]
        return total / 3

    for e in range(3):
        expected = jax.jit(jax.grad(objective), static_argnums=1)(cases.params(), e)
        cases.assert_close(jax.tree.map(lambda x, e=e: x[e], gradients), expected, cases.ROUNDING)
    squares, products = inner_products(cases.model(), gradients, gradients)
    leaves = jax.tree.leaves(gradients)
    flat = np.concatenate([np.asarray(x).reshape(3, -1) for x in leaves], axis=1)
    np.testing.assert_allclose(products, flat @ flat.T, rtol=1e-5)
    np.testing.assert_allclose(squares, np.diag(flat @ flat.T), rtol=1e-5)


def test_labels_of_several_estimators_together():
    batch = collate(cases.random_episodes(LENGTHS), 2)
    one, other = labels_of(batch, 1, 24), labels_of(batch, 2, 5)
    joint, coefficients = joined_labels(batch, [one, None, other])
    length = batch.tokens.shape[1]
    keys = label_keys(joint, length)
    assert keys.tolist() == sorted({*label_keys(one, length), *label_keys(other, length)})
    for own, found in ((one, coefficients[0]), (other, coefficients[2])):
        wanted = dict(zip(label_keys(own, length), own.coefficients[own.position > 0], strict=True))
        numbers = found[joint.position > 0]
        assert {k: x for k, x in zip(keys, numbers, strict=True) if x} == wanted
    assert not coefficients[1].any()
