"""Attention by cuDNN's kernel, without a GPU: the call that it gets, computed by XLA, is ours.

tests/tools/plan/test_cuda.py lowers whole programs for CUDA.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.model_oracles import random_model

from vinejax.config.load import default, from_dict
from vinejax.learner.packing import with_single_rows
from vinejax.methods.known import find_method
from vinejax.model import attention
from vinejax.model.attention import (
    AttentionRule,
    causal_attention,
    causal_mask,
    cudnn_attention,
    self_attention,
    visibility_for,
)

T, HEADS, KV_HEADS, WIDTH = 24, 4, 2, 8
LENGTHS = np.array([T, 17, 1, 0], np.int32)
IS_TOKEN = (np.arange(T) < LENGTHS[:, None])[..., None, None]
B = len(LENGTHS)
by_xla = functools.partial(cudnn_attention, implementation="xla")


def draw(heads: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(B, T, heads, WIDTH)).astype(np.float32)


Q, TOWARDS = draw(HEADS, 0), draw(HEADS, 1) * IS_TOKEN
K, V = draw(KV_HEADS, 2), draw(KV_HEADS, 3)


@functools.partial(jax.jit, static_argnames=("attend", "rule"))
def mixed_and_gradients(attend: Any, seen: Any, rule: AttentionRule) -> list[jax.Array]:
    """(mixed values, gradients for q, k and v) of tokens; 0 at padding."""
    mixed, back = jax.vjp(lambda q, k, v: attend(q, k, v, seen, rule), Q, K, V)
    return [x * IS_TOKEN for x in (mixed, *back(TOWARDS))]


def assert_same(actual: list[jax.Array], expected: list[jax.Array]) -> None:
    for x, y in zip(actual, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


@pytest.mark.parametrize("window", [None, 5, 1, 40])
def test_lengths_and_windows_are_the_mask(window: int | None):
    rule = AttentionRule(0.3, window=window)
    mask = np.broadcast_to(causal_mask(T, window), (B, T, T))
    expected = mixed_and_gradients(self_attention, mask, rule)
    assert_same(mixed_and_gradients(by_xla, LENGTHS, rule), expected)
    assert_same(mixed_and_gradients(by_xla, None, rule), expected)
    assert_same(mixed_and_gradients(by_xla, mask, rule), expected)
    if window in (None, 5):
        fewer = dataclasses.replace(rule, window=(window or T) - 1)
        mixed, *_ = mixed_and_gradients(by_xla, None, fewer)
        assert np.abs(np.subtract(mixed, expected[0])).max() > 1e-3


def test_what_is_behind_a_row_is_0_and_reaches_nothing(monkeypatch: pytest.MonkeyPatch):
    """The test's kernel leaves NaN at padding, in outputs and gradients, as cuDNN may do."""
    plain = jax.nn.dot_product_attention
    spoiled = jnp.where(IS_TOKEN, 0.0, jnp.nan)

    @jax.custom_vjp
    def spoil(x: jax.Array) -> jax.Array:
        return x + spoiled

    spoil.defvjp(lambda x: (x + spoiled, None), lambda _, g: (g,))

    @jax.custom_vjp
    def spoil_back(x: jax.Array) -> jax.Array:
        return x

    spoil_back.defvjp(lambda x: (x, None), lambda _, g: (g + spoiled,))

    def kernel(q: jax.Array, k: jax.Array, v: jax.Array, **options: Any) -> jax.Array:
        assert options["query_seq_lengths"] is options["key_value_seq_lengths"]
        return spoil(plain(*map(spoil_back, (q, k, v)), **options))

    seen, rule = jnp.asarray(LENGTHS), AttentionRule(0.3)
    expected = mixed_and_gradients(by_xla, seen, rule)
    monkeypatch.setattr(jax.nn, "dot_product_attention", kernel)

    @jax.jit
    def with_gradients() -> list[jax.Array]:
        mixed, back = jax.vjp(lambda q, k, v: by_xla(q, k, v, seen, rule), Q, K, V)
        return [mixed, *back(jnp.ones_like(mixed))]

    mixed, *gradients = with_gradients()
    for x in (mixed, *gradients):
        assert np.isfinite(x).all() and (np.asarray(x)[~IS_TOKEN[..., 0, 0]] == 0).all()
    np.testing.assert_allclose(mixed, expected[0], atol=1e-6)


def test_what_cudnn_is_given():
    """The kernel gets lengths if each row is one sequence, and a mask for packed rows."""
    ids = jnp.asarray(IS_TOKEN[..., 0, 0], jnp.int32)
    at = jnp.broadcast_to(jnp.arange(T), ids.shape)
    np.testing.assert_array_equal(visibility_for("cudnn", at, ids, None, None, True), LENGTHS)
    for kind, shared, single in (
        ("cudnn", None, False),
        ("cudnn", ids, True),
        ("xla", None, True),
    ):
        assert visibility_for(kind, at, ids, shared, None, single).shape == (B, T, T)


@pytest.mark.parametrize("window", [None, 4])
def test_prefill_gives_no_mask(monkeypatch: pytest.MonkeyPatch, window: int | None):
    asked = []

    def kernel(q: jax.Array, k: jax.Array, v: jax.Array, **options: Any) -> jax.Array:
        asked.append(options)
        return q

    monkeypatch.setattr(jax.nn, "dot_product_attention", kernel)
    q, k, v = (jnp.asarray(x, jnp.bfloat16) for x in (Q, K, V))
    causal_attention("auto", "gpu", q, k, v, AttentionRule(0.3, window=window))
    (options,) = asked
    assert options.pop("implementation") == "cudnn" and "mask" not in options
    assert options == {
        "scale": 0.3, "is_causal": True, "local_window_size": window and (window - 1, 0)
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("windows", [(6, 6), ()])
def test_a_model_on_unpacked_rows(monkeypatch: pytest.MonkeyPatch, windows: tuple[int, ...]):
    """Hidden states and gradients of all weights are the same with lengths and with a mask."""
    monkeypatch.setattr(attention, "cudnn_attention", by_xla)
    monkeypatch.setattr(attention, "why_impossible", lambda *_: "")  # in float32 too
    model, params, _ = random_model(windows=windows, attention="cudnn")
    assert model.compute.single_rows is False
    compute = dataclasses.replace(model.compute, single_rows=True)
    ids = jnp.asarray(IS_TOKEN[..., 0, 0], jnp.int32)
    at = jnp.broadcast_to(jnp.arange(T), ids.shape)
    tokens = jnp.asarray(np.random.default_rng(7).integers(0, 20, ids.shape), jnp.int32)

    def found(compute: Any) -> Any:
        used = dataclasses.replace(model, compute=compute)

        def total(params: Any) -> tuple[jax.Array, jax.Array]:
            x = jnp.where(ids[..., None] > 0, used.hidden(params, tokens, at, ids)[0], 0)
            return jnp.sum(jnp.sin(x)), x

        return jax.jit(jax.value_and_grad(total, has_aux=True))(params)

    assert dataclasses.replace(model, compute=compute).choose_attention(at, ids, None)[1].ndim == 1
    by_lengths, by_mask = found(compute), found(dataclasses.replace(compute, attention="xla"))
    for x, y in zip(jax.tree.leaves(by_lengths), jax.tree.leaves(by_mask), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5 * max(1, np.abs(y).max()))


@pytest.mark.parametrize("packing", [True, False])
def test_when_rows_hold_one_sequence(packing: bool):
    fields = default()
    fields.ppo.packing = packing
    model, _, _ = random_model()
    assert with_single_rows(model, from_dict(fields)).compute.single_rows is not packing
    pairs = {name: "paired_rows" in find_method(name).flags for name in ("vineppo", "dpo_positive")}
    assert pairs == {"vineppo": False, "dpo_positive": True}
