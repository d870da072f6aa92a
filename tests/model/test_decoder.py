"""The decoder against NumPy loops and a trained model, and invariances of its results."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import data
from helpers import model_oracles as oracle
from helpers.model_oracles import ALL_BIASES, random_model
from jax.typing import ArrayLike

from vinejax.core.types import Batch
from vinejax.learner.score import token_logprobs
from vinejax.model.decoder import RMSNorm, apply, times_transposed
from vinejax.model.rope import Rope, rotate

TOKENS = np.random.default_rng(7).integers(0, 20, (3, 24))
VARIANTS = {
    "mha": dict(num_kv_heads=4),
    "gqa": dict(num_kv_heads=2),
    "mqa": dict(num_kv_heads=1),
    "tied": dict(tied_head=True),
    "biases": ALL_BIASES,
    "other sizes": dict(
        num_layers=3, head_dim=6, ffn=20, rope=Rope(rope_theta=50.0), norm_eps=1e-2
    ),
}


def batch_of(tokens: ArrayLike, positions: ArrayLike, segment_ids: ArrayLike) -> Batch:
    tokens, segment_ids, positions = (
        jnp.asarray(x, jnp.int32) for x in (tokens, segment_ids, positions)
    )
    zeros = np.zeros(tokens.shape, np.float32)
    return Batch(
        tokens=tokens,
        segment_ids=segment_ids,
        positions=positions,
        mask=segment_ids > 0,
        advantages=zeros,
        old_logprobs=zeros,
        ref_logprobs=zeros,
    )


def whole_rows(tokens: np.ndarray) -> Batch:
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    return batch_of(tokens, positions, np.ones_like(tokens))


# --- against oracles ---


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_match_the_numpy_decoder(name):
    model, params, _ = random_model(**VARIANTS[name])
    assert ("head" in params) == (name != "tied")
    out = apply(model, params, TOKENS.tolist())
    assert out.dtype == jnp.float32
    for row, tokens in zip(out, TOKENS, strict=True):
        np.testing.assert_allclose(row, oracle.forward(model.cfg, params, tokens), atol=3e-5)


def test_golden_logits_of_a_trained_model(stories):
    golden = np.load(data.path("stories260K/golden_logits.npz"))
    for name in ("a", "b"):
        ids = golden[f"ids_{name}"]
        padded = np.pad(ids, ((0, 0), (0, 64 - ids.shape[1])))  # one program for both
        out = apply(stories.decoder, stories.params, padded)[0, : ids.shape[1]]
        np.testing.assert_allclose(out, golden[f"logits_{name}"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("theta", [10000.0, 50.0])
def test_rope_turns_complex_pairs(theta):
    x = np.random.default_rng(0).normal(size=(1, 5, 3, 8)).astype(np.float32)
    positions = np.array([[0, 1, 7, 100, 4095]])
    out = rotate(jnp.asarray(x), jnp.asarray(positions), Rope(rope_theta=theta).frequencies(8))
    np.testing.assert_allclose(out[0], oracle.rope(x[0], positions[0], theta), atol=2e-3)
    np.testing.assert_allclose(out[0, :4], oracle.rope(x[0], positions[0], theta)[:4], atol=5e-5)
    np.testing.assert_array_equal(out[0, 0], x[0, 0])


def test_rope_scores_depend_on_the_distance_alone():
    q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 8)).astype(np.float32)

    def score(q_at: int, k_at: int) -> float:
        turned = [
            rotate(jnp.asarray(x), jnp.array([[t]]), Rope().frequencies(8))
            for x, t in ((q, q_at), (k, k_at))
        ]
        return float(jnp.sum(turned[0] * turned[1]))

    assert score(9, 4) == pytest.approx(score(105, 100), abs=1e-4)
    assert score(9, 4) != pytest.approx(score(4, 9), abs=1e-2)


def test_rope_of_bfloat16_keeps_its_angles_in_float32():
    """bfloat16 has no 257: angles rounded to bfloat16 would be a whole radian too small."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 1, 2, 8)), jnp.bfloat16)
    at = jnp.array([[257]])
    out = rotate(x, at, Rope().frequencies(8))
    assert out.dtype == jnp.bfloat16
    exact = rotate(x.astype(jnp.float32), at, Rope().frequencies(8))
    np.testing.assert_allclose(out.astype(jnp.float32), exact, atol=0.02)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rms_norm(dtype):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(4, 32)) * [[1], [1e-4], [100], [0]], dtype)
    scale = rng.normal(size=32).astype(np.float32)
    out = RMSNorm(1e-5).apply({"params": {"scale": scale}}, x)
    assert isinstance(out, jax.Array) and out.dtype == dtype
    expected = oracle.rms_norm(np.asarray(x, np.float64), scale, 1e-5)
    rtol = 1e-5 if dtype == "float32" else 2**-8
    np.testing.assert_allclose(np.asarray(out, np.float64), expected, rtol=rtol)


# --- what it must not depend on ---


def test_no_token_sees_a_later_one():
    """Row t has another token at t, which changes the positions from t on, but no earlier ones."""
    model, params, _ = random_model()
    rows = np.tile(TOKENS[0], (24, 1))
    rows[np.diag_indices(24)] += np.where(TOKENS[0] < 19, 1, -1)
    logits = np.asarray(apply(model, params, np.concatenate([TOKENS[:1], rows])))
    change = np.abs(logits[1:] - logits[0]).max(axis=-1)
    np.testing.assert_array_equal(change > 1e-4, np.tri(24, dtype=bool).T)
    assert change[np.tri(24, k=-1, dtype=bool)].max() == 0


@pytest.mark.parametrize("fields", [dict(), dict(windows=(4, None), local_rope=Rope("linear"))])
def test_segments_of_a_packed_row_are_apart(fields):
    """Two sequences in one row, in any order, have the log-probabilities of each alone."""
    model, params, _ = random_model(**fields)
    first, second, pad = TOKENS[0, :10], TOKENS[1, :14], np.full(6, 3)

    @jax.jit
    def score(tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array) -> Any:
        return token_logprobs(model, params, batch_of(tokens, positions, segment_ids), 0.7)

    def scored(*rows: list[np.ndarray]) -> Any:
        """Rows whose segments are numbered from 1, with padding as segment 0."""
        segments = [[np.full(len(x), i + 1) for i, x in enumerate(row)] for row in rows]
        positions = [[np.arange(len(x)) for x in row] for row in rows]
        segment_ids = np.array([np.concatenate(row) for row in segments])
        segment_ids[:, 24:] = 0
        tokens, positions = (np.array([np.concatenate(r) for r in x]) for x in (rows, positions))
        return score(tokens, positions, segment_ids)

    packed = scored([first, second, pad], [second, first, pad])
    alone = scored([first, np.full(20, 3)], [second, np.full(16, 3)])
    for of_packed, of_alone in zip(packed, alone, strict=True):  # log-probabilities, entropies
        # The first entry of a segment has no meaning, because no token precedes it.
        for row, start, source, length in [(0, 0, 0, 10), (0, 10, 1, 14), (1, 14, 0, 10)]:
            found = of_packed[row, start + 1 : start + length]
            np.testing.assert_allclose(found, of_alone[source, 1:length], atol=1e-5)


def test_padding_on_the_right_changes_nothing():
    model, params, _ = random_model()
    short = apply(model, params, TOKENS[:, :17])
    batch = batch_of(TOKENS, np.broadcast_to(np.arange(24), (3, 24)), np.ones((3, 24)))
    padded = batch._replace(segment_ids=np.where(np.arange(24) < 17, batch.segment_ids, 0))

    @jax.jit
    def logits(params: Any, batch: Batch) -> jax.Array:
        hidden, _ = model.hidden(params, batch.tokens, batch.positions, batch.segment_ids)
        return model.logits(params, hidden)

    np.testing.assert_allclose(logits(params, padded)[:, :17], short, atol=1e-5)


def test_gqa_is_mha_with_repeated_kv_heads():
    model, params, _ = random_model(num_kv_heads=2, **ALL_BIASES)
    wide, _, _ = random_model(num_kv_heads=4, **ALL_BIASES)
    layers = dict(params["layers"])
    for name in ("k", "v"):
        kernel, bias = layers[name]["kernel"], layers[name]["bias"]  # [L,D,K,H], [L,K,H]
        layers[name] = {
            "kernel": np.repeat(kernel, 2, axis=2),
            "bias": np.repeat(bias, 2, axis=1),
        }
    repeated = apply(wide, {**params, "layers": layers}, TOKENS)
    np.testing.assert_allclose(apply(model, params, TOKENS), repeated, atol=1e-5)


# --- profiles ---


def test_profiles_name_the_parts_of_a_model():
    """Both the program of logits and that of their gradient have the names."""
    model, params, _ = random_model()

    def loss(params: Any) -> jax.Array:
        return apply(model, params, TOKENS).sum()

    for function in (loss, jax.grad(loss)):
        program = jax.jit(function).lower(params).as_text(debug_info=True)
        for part in ("embed", "attention", "mlp", "logits"):
            assert f"({part})/" in program or f"/{part}/" in program, part


# --- dtypes and the first weights ---


def test_bfloat16_computes_inside_and_gives_float32_logits():
    model, params, _ = random_model()
    half, _, _ = random_model(dtype="bfloat16")
    batch = whole_rows(TOKENS)
    hidden, _ = jax.eval_shape(
        half.hidden, params, batch.tokens, batch.positions, batch.segment_ids
    )
    assert hidden.dtype == jnp.bfloat16
    exact, rounded = apply(model, params, TOKENS), apply(half, params, TOKENS)
    assert rounded.dtype == jnp.float32
    assert 1e-4 < np.abs(np.subtract(exact, rounded)).max() < 0.2
    # Logits that were bfloat16 at some point would have no lower bits.
    assert np.any(np.asarray(rounded).view(np.uint32) & 0xFFFF)


def test_few_rows_are_the_second_factor_of_a_product():
    """On a CPU this includes the compiled program, in which XLA would exchange the factors."""
    rng = np.random.default_rng(3)
    rows, kernel = rng.normal(size=(5, 16)), rng.normal(size=(24, 16))
    rows, kernel = rows.astype(np.float32), kernel.astype(np.float32)
    product = jax.jit(times_transposed, static_argnames="few")
    for few, shape in ((5, "f32[5,24]"), (6, "f32[24,5]")):
        np.testing.assert_allclose(product(rows, kernel, few=few), rows @ kernel.T, rtol=1e-5)
        text = product.lower(rows, kernel, few=few).compile().as_text() or ""
        (dot,) = [line for line in text.splitlines() if " dot(" in line]
        assert f"= {shape}" in dot, dot


@pytest.mark.slow
def test_fresh_weights_keep_the_scale_of_what_passes_through():
    model, _, _ = random_model(width=64, head_dim=16)
    params = jax.jit(model.init)(jax.random.key(0))
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(params))
    assert 0.5 < float(apply(model, params, TOKENS).std()) < 2
    for path, leaf in jax.tree_util.tree_leaves_with_path(params["layers"]):
        names = [key.key for key in path]
        if names[1] == "kernel":
            fan_in = leaf[0].size // model.cfg.width if names[0] in ("out", "down") else 64
            assert float(leaf.std()) == pytest.approx(fan_in**-0.5, rel=0.1), names
            assert float(jnp.abs(leaf[0] - leaf[1]).max()) > 0.01, "layers start alike"
