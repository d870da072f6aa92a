"""Log-probabilities and entropies in chunks of the vocabulary, against all logits at once."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import eight_devices
from helpers.loop_cases import ROUNDING, assert_close
from helpers.whole_logits import of_hidden, some_labels

from vinejax.model.chunked_softmax import (
    CHUNK_BYTES,
    FLOAT32,
    MIN_COLUMNS,
    LabelTokens,
    OutputLayer,
    chunk_columns,
)
from vinejax.model.token_logprobs import TokenScores, token_scores

B, T, D, V = 2, 5, 16, 23
NUM_LABELS = 9  # of a row, a third of which is padding
Function = Callable[..., TokenScores]


def chunked(x: jax.Array, table: jax.Array, *more: Any) -> TokenScores:
    return token_scores(x, table, *more, None)


def arguments(output: OutputLayer, dtype: str = "float32") -> tuple[Any, ...]:
    """Random hidden states, output matrix, tokens and labels, with logits of several units.

    The first and the last column of the vocabulary are among the tokens.
    """
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(B, T, D)), dtype)
    shape = (V, D) if output.name == "embed" else (D, V)
    table = jnp.asarray(rng.normal(size=shape), dtype)
    tokens = rng.integers(0, V, (B, T), np.int32)
    tokens[0, :2] = 0, V - 1
    return x, table, jnp.asarray(tokens), some_labels(rng, tokens, V, NUM_LABELS)


@functools.partial(jax.jit, static_argnames=("function", "output"))
def value_and_gradients(
    function: Function,
    output: OutputLayer,
    x: jax.Array,
    table: jax.Array,
    tokens: jax.Array,
    labels: LabelTokens | None,
) -> dict[str, Any]:
    """Results, and gradients of a sum in which every log-probability and entropy has a weight."""
    rng = np.random.default_rng(1)
    shapes = [(B, T), (B, T), (B, NUM_LABELS)][: 2 if labels is None else 3]
    weights = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]

    def loss(x: jax.Array, table: jax.Array) -> tuple[jax.Array, TokenScores]:
        scores = function(x, table, tokens, labels, output)
        parts = map(jnp.vdot, weights, jax.tree.leaves(scores))
        return sum(parts, jnp.float32(0)), scores

    gradients, scores = jax.grad(loss, (0, 1), has_aux=True)(x, table)
    return {**scores._asdict(), "x": gradients[0], "table": gradients[1]}


@pytest.mark.parametrize(
    ("name", "softcap", "temperature"),
    [("head", None, 1.0), ("embed", 5.0, 0.6), ("head", 30.0, 1.3), ("embed", None, 0.8)],
)
def test_values_and_gradients_equal_those_of_all_logits(
    name: str, softcap: float | None, temperature: float
):
    """23 columns are one chunk, or three chunks of 7 and one of 2."""
    output = OutputLayer(name, softcap, temperature)
    expected = value_and_gradients(of_hidden, output, *arguments(output))
    for chunk in (7, None):
        by_chunks = OutputLayer(name, softcap, temperature, chunk)
        found = value_and_gradients(chunked, by_chunks, *arguments(output))
        assert {found[name].dtype for name in TokenScores._fields} == {jnp.dtype("float32")}
        assert_close(found, expected, ROUNDING / 5)


@pytest.mark.slow
def test_no_chunk_changes_the_results():
    output = OutputLayer("head", 5.0, 0.7)
    expected = value_and_gradients(of_hidden, output, *arguments(output))
    for chunk in (1, 11, 22, 100):
        by_chunks = OutputLayer("head", 5.0, 0.7, chunk)
        assert_close(
            value_and_gradients(chunked, by_chunks, *arguments(output)), expected, ROUNDING / 5
        )


def test_in_bfloat16_the_error_is_that_of_rounded_products():
    """Only operands are rounded, so gradients are as accurate as with all logits at once."""
    output = OutputLayer("head", None, 0.6, 7)
    x, table, *tokens = arguments(output, "bfloat16")
    exact = value_and_gradients(
        of_hidden, output, x.astype(jnp.float32), table.astype(jnp.float32), *tokens
    )
    whole = value_and_gradients(of_hidden, output, x, table, *tokens)
    found = value_and_gradients(chunked, output, x, table, *tokens)
    assert found["x"].dtype == found["table"].dtype == jnp.bfloat16
    for name in TokenScores._fields:  # products of bfloat16 numbers are exact in float32
        assert error(found[name], exact[name]) < 1e-6, name
    for name in ("x", "table"):
        errors = [error(results[name], exact[name]) for results in (found, whole)]
        assert errors[0] < max(1.2 * errors[1], 2**-8), (name, errors)


def error(found: jax.Array, exact: jax.Array) -> float:
    found = found.astype(jnp.float32)
    return float(jnp.linalg.norm(found - exact) / jnp.linalg.norm(exact))


def test_logits_of_any_size_and_none():
    """One token may have all the probability, and a hidden state may be NaN."""
    output = OutputLayer("head", None, 1.0, 7)
    x, table, *tokens = arguments(output)
    found = value_and_gradients(chunked, output, 1e4 * x, table, *tokens)
    assert all(bool(jnp.isfinite(y).all()) for y in found.values())
    likeliest = jnp.argmax(x @ table, axis=-1).astype(jnp.int32)
    certain = value_and_gradients(chunked, output, 1e4 * x, table, likeliest, None)
    np.testing.assert_array_equal(certain["logprob"], 0.0)
    np.testing.assert_array_equal(certain["entropy"], 0.0)
    spoiled = value_and_gradients(chunked, output, x.at[1, 2].set(jnp.nan), table, *tokens)
    assert np.argwhere(np.isnan(spoiled["logprob"])).tolist() == [[1, 2]]
    assert bool(jnp.isnan(spoiled["table"]).all()), "so that the update is refused"


def test_labels_do_not_change_the_results_of_tokens():
    output = OutputLayer("head", None, 1.0, 7)
    x, table, tokens, labels = arguments(output)
    found = value_and_gradients(chunked, output, x, table, tokens, labels)
    alone = value_and_gradients(chunked, output, x, table, tokens, None)
    np.testing.assert_array_equal(found["logprob"], alone["logprob"])
    np.testing.assert_array_equal(found["entropy"], alone["entropy"])
    assert alone["of_labels"] is None


def test_a_chunk_is_as_large_as_its_bytes_allow():
    assert chunk_columns(2048, 20) == 20
    for tokens, vocab in ((1, 256_000), (2048, 151_936), (16_384, 151_936), (10**6, 32_000)):
        chunk = chunk_columns(tokens, vocab)
        assert chunk == vocab or chunk % 128 == 0
        assert FLOAT32 * tokens * chunk <= CHUNK_BYTES or chunk == MIN_COLUMNS
        # Similar sizes: with this number of chunks, only the rounding up could be saved.
        assert chunk * math.ceil(vocab / chunk) < vocab + 128 * math.ceil(vocab / chunk)
    assert chunk_columns(2048, 151_936) == 8064  # 19 chunks


DEVICES = """
import jax
import numpy as np
from jax.sharding import NamedSharding
from helpers.loop_cases import ROUNDING, assert_close
from helpers.whole_logits import of_hidden, some_labels
from vinejax.model.chunked_softmax import OutputLayer
from vinejax.model.sharding import mesh_over, spec_for
from vinejax.model.token_logprobs import token_scores

assert jax.device_count() == 8
rng = np.random.default_rng(0)
B, D = 8, 12

def results_and_gradients(function, x, table, tokens, labels, output, weights):
    def loss(x, table):
        results = function(x, table, tokens, labels, output)
        return sum((w * y).sum() for w, y in zip(weights, results)), results
    gradients, results = jax.grad(loss, (0, 1), has_aux=True)(x, table)
    return {"results": results, "gradients": gradients}

# Vocabularies and lengths that `tensor` divides, and others.
for sizes, V, T, name in (
    ((2, 2, 2), 24, 8, "head"),
    ((2, 2, 2), 24, 7, "embed"),
    ((2, 2, 2), 23, 8, "embed"),
    ((2, 2, 2), 23, 7, "head"),
    ((1, 2, 4), 24, 8, "embed"),
    ((1, 2, 4), 23, 8, "head"),
    ((8, 1, 1), 24, 8, "head"),
):
    mesh = mesh_over(sizes, jax.devices())
    output = OutputLayer(name, 4.0, 0.7, 5)
    x = rng.normal(size=(B, T, D)).astype(np.float32)
    table = rng.normal(size=(V, D) if name == "embed" else (D, V)).astype(np.float32)
    tokens = rng.integers(0, V, (B, T), np.int32)
    labels = some_labels(rng, tokens, V, 6)
    weights = [rng.normal(size=s).astype(np.float32) for s in ((B, T), (B, T), (B, 6))]
    expected = results_and_gradients(of_hidden, x, table, tokens, labels, output, weights)
    spec = spec_for((jax.tree_util.DictKey(name),), table.shape, mesh)
    laid_out = jax.device_put(table, NamedSharding(mesh, spec))

    def over_mesh(x, table, tokens, labels, output):
        return token_scores(x, table, tokens, labels, output, mesh)

    on_mesh = jax.jit(
        lambda x, table, tokens, labels: results_and_gradients(
            over_mesh, x, table, tokens, labels, output, weights
        )
    )
    found = on_mesh(x, laid_out, tokens, labels)
    assert found["gradients"][1].sharding.is_equivalent_to(laid_out.sharding, 2), "whole"
    assert_close(found, expected, ROUNDING / 5)
    print(sizes, V, T, name)
"""


@pytest.mark.slow
def test_devices_change_nothing():
    """Rows, columns of the vocabulary, or positions are split over devices."""
    assert len(eight_devices.printed("-c", DEVICES)) == 7
