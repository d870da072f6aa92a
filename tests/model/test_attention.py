"""Attention by kernels equals that of plain products, and is chosen where it is possible."""

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.model_oracles import TINY, random_model
from helpers.refusals import refuses
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel
from jax.sharding import AxisType

from vinejax.core.settings import ModelConfig
from vinejax.core.types import Batch
from vinejax.learner.score import token_logprobs
from vinejax.model import attention
from vinejax.model.attention import (
    AttentionRule,
    causal_mask,
    choose_kind,
    self_attention,
    splash_attention,
)
from vinejax.model.config import Compute, compute_as_set
from vinejax.model.decoder import REMAT, Decoder
from vinejax.model.sharding import platform_of

T = 384  # three blocks of splash


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def segments(kind: str) -> jax.Array:
    """Segment ids [2, T]: one sequence per row with padding on the right, or several per row."""
    at = np.arange(T)
    if kind == "padded":
        return jnp.asarray([at < 300, at < 77], jnp.int32)
    packed = [1 + (at > 30) + (at > 290), 1 + (at > 128)]
    return jnp.asarray(np.where(at < 340, packed, 0), jnp.int32)


# --- plain products, against one head at a time


def by_head(
    q: jax.Array, k: jax.Array, v: jax.Array, visible: jax.Array, rule: AttentionRule
) -> jax.Array:
    """Attention with one matrix of scores [T, T] per row and head."""
    B, _, N, _ = q.shape
    group = N // k.shape[2]

    def mixed(b: int, n: int) -> jax.Array:
        scores = rule.scores(q[b, :, n] @ k[b, :, n // group].T)
        weights = jax.nn.softmax(jnp.where(visible[b], scores, -jnp.inf), axis=-1)
        return weights @ v[b, :, n // group]

    return jnp.stack([jnp.stack([mixed(b, n) for n in range(N)], 1) for b in range(B)])


@pytest.mark.first(5)
@pytest.mark.parametrize("length", [1, 4, 5, 22, 40])
@pytest.mark.parametrize("packed", [True, False])
def test_blocks_of_queries_are_all_queries_at_once(
    length: int, packed: bool, monkeypatch: pytest.MonkeyPatch
):
    """Values and gradients for lengths around one block, and for the maximum number of blocks."""
    monkeypatch.setattr(attention, "QUERY_BLOCK", 4)
    monkeypatch.setattr(attention, "MAX_BLOCKS", 6)
    rule = AttentionRule(0.3, 2.0, 9)
    visible = np.broadcast_to(causal_mask(length, rule.window), (2, length, length))
    if packed:
        segment = np.arange(length) // 7
        visible = visible & (segment[:, None] == segment)
    q, towards = (draw(2, length, 4, 6, seed=i) for i in range(2))
    k, v = (draw(2, length, 2, 6, seed=i) for i in range(2, 4))

    def mixed_and_gradients(attend: Any) -> Any:
        mixed, back = jax.vjp(lambda q, k, v: attend(q, k, v, jnp.asarray(visible), rule), q, k, v)
        return mixed, *back(towards)

    found, expected = (
        jax.jit(mixed_and_gradients, static_argnums=0)(f) for f in (self_attention, by_head)
    )
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


def test_no_scores_above_the_diagonal_are_computed():
    """With 8 blocks of queries, 9/16 of all pairs are computed, and never all at once."""
    length, size = 2048, 256
    q, k = (jax.ShapeDtypeStruct((1, length, n, 8), jnp.float32) for n in (2, 1))
    visible = jax.ShapeDtypeStruct((1, length, length), jnp.bool_)
    jaxpr = jax.make_jaxpr(functools.partial(self_attention, rule=AttentionRule(1.0)))
    text = str(jaxpr(q, k, k, visible))
    assert f"f32[1,1,{2 * size},{length}]" in text and f"f32[1,1,{2 * length}," not in text
    shapes = {int(n) for n in re.findall(rf"f32\[1,1,{2 * size},(\d+)\]", text)}
    assert {n for n in shapes if n > 8} == set(range(size, length + 1, size))


# --- splash, in the interpreter, against plain products


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "make_splash_mha_single_device"
    make = getattr(splash_attention_kernel, name)
    monkeypatch.setattr(splash_attention_kernel, name, functools.partial(make, interpret=True))


CASES = {
    "several queries a key, packed": dict(heads=(4, 2), segments="packed"),
    "one key, bounded, odd scale": dict(heads=(3, 1), softcap=5.0, scale=0.3),
    "window": dict(heads=(1, 1), window=50, segments="packed"),
    "half a vector wide": dict(heads=(2, 2), head_dim=64),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("interpreted")
def test_splash_is_plain_attention(name: str):
    case = {"head_dim": 32, "segments": "padded", "softcap": None, "window": None, **CASES[name]}
    (N, K), H = case["heads"], case["head_dim"]
    rule = AttentionRule(case.get("scale", H**-0.5), case["softcap"], case["window"])
    seen = segments(case["segments"])
    visible = (seen[:, :, None] == seen[:, None, :]) & causal_mask(T, rule.window)
    inputs = draw(2, T, N, H), draw(2, T, K, H, seed=1), draw(2, T, K, H, seed=2)
    towards = draw(2, T, N, H, seed=3)

    def plain(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return self_attention(q, k, v, visible, rule)

    def kernel(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return splash_attention(q, k, v, seen, rule)

    def mixed_and_gradients(attend: Any) -> Any:
        """The mixed values, and the gradients of their product with `towards`."""
        mixed, back = jax.vjp(attend, *inputs)
        return mixed, *back(towards)

    expected = jax.jit(lambda: mixed_and_gradients(plain))()
    found = jax.jit(lambda: mixed_and_gradients(kernel))()
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5 * max(1.0, float(jnp.abs(y).max())))


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
def test_a_model_by_splash_is_the_model():
    """Log-probabilities and gradients of padded rows, with remat of all layers."""
    model, params, _ = random_model(context=T, attention="splash", remat="full")
    plain = dataclasses.replace(model, compute=Compute(attention="xla"))
    tokens = jnp.asarray(np.random.default_rng(5).integers(0, 20, (2, T)))
    seen = segments("padded")
    positions = jnp.broadcast_to(jnp.arange(T), tokens.shape)
    zeros = jnp.zeros((2, T))
    batch = Batch(tokens, seen, positions, seen > 0, zeros, zeros, zeros)

    def loss(params: Any, model: Decoder) -> tuple[jax.Array, jax.Array]:
        logprobs, _ = token_logprobs(model, params, batch, 1.0)
        logprobs = jnp.where(batch.mask, logprobs, 0.0)
        return logprobs.mean(), logprobs

    gradient = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)
    expected = gradient(params, plain)
    found = gradient(params, model)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), found, expected)


@pytest.mark.parametrize("name", ["xla", "auto"])
def test_a_place_attends_to_its_own_sequences(name: str):
    """With a window and a bound; values at later positions do not matter."""
    q, k, v = (draw(2, 32, 2, 8, seed=i) for i in range(3))

    rule = AttentionRule(0.2, 4.0, 9)
    attend = jax.jit(lambda q, k, v: attention.causal_attention(name, "cpu", q, k, v, rule))

    def mixed(places: Any, change: float, kept: float = 1.0) -> np.ndarray:
        inputs = np.stack((q, k, v))
        inputs[:, :, places] = kept * inputs[:, :, places] + change
        return np.asarray(attend(*inputs))

    found = mixed(slice(0), 0.0)
    padded = mixed(slice(20, None), 7.0, kept=0.0)
    np.testing.assert_array_equal(padded[:, :20], found[:, :20])
    moved = np.abs(mixed(4, 3.0) - found).max(axis=(0, 2, 3)) > 0
    np.testing.assert_array_equal(np.flatnonzero(moved), np.arange(4, 13))  # positions that see 4


# --- what the backward pass computes again


@pytest.mark.slow
def test_what_is_computed_again_changes_no_gradient():
    tokens = jnp.asarray(np.random.default_rng(5).integers(0, 20, (2, 32)))
    ones = jnp.ones_like(tokens)
    found = {}
    for remat in REMAT:
        model, params, _ = random_model(remat=remat)

        def loss(params: Any, model: Decoder = model) -> jax.Array:
            x, _ = model.hidden(params, tokens, ones.cumsum(1) - 1, ones)
            return jnp.sin(x).sum()

        found[remat] = jax.jit(jax.grad(loss))(params)
        program = jax.make_jaxpr(jax.grad(loss))(params)
        assert ("remat" in str(program) or "checkpoint" in str(program)) == (remat != "none")
    for remat in ("dots", "full"):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6 * np.abs(y).max()),
            found[remat], found["none"],
        )  # fmt: skip


def test_computing_more_again_keeps_less():
    """The bytes that the forward pass saves: all results, products alone, inputs of layers."""
    tokens = jnp.zeros((2, 64), jnp.int32)
    kept = {}
    for remat in REMAT:
        model, params, _ = random_model(remat=remat, num_layers=4)

        def forward(params: Any, model: Decoder = model) -> jax.Array:
            return model.hidden(params, tokens, tokens, tokens)[0]

        _, back = jax.eval_shape(lambda params: jax.vjp(forward, params), params)
        kept[remat] = sum(x.size for x in jax.tree.leaves(back))
    assert kept["full"] < 0.7 * kept["dots"] < 0.5 * kept["none"], kept


# --- the choice

PLAIN = AttentionRule(0.1)


@pytest.mark.parametrize(
    "name, platform, length, changes, expected",
    [
        ("auto", "cpu", 256, {}, "xla"),
        ("auto", "tpu", 256, {}, "splash"),
        ("auto", "tpu", 192, {}, "xla"),  # no multiple of 128
        ("splash", "tpu", 96, {}, "xla"),
        ("auto", "gpu", 256, {}, "cudnn"),
        ("auto", "gpu", 256, {"dtype": "float32"}, "xla"),
        ("auto", "gpu", 256, {"head_dim": 256}, "xla"),
        ("auto", "gpu", 256, {"rule": AttentionRule(0.1, softcap=5.0)}, "xla"),
        ("auto", "tpu", 256, {"rule": AttentionRule(0.1, softcap=5.0, window=9)}, "splash"),
        ("xla", "tpu", 256, {}, "xla"),
        ("xla", "gpu", 256, {}, "xla"),
    ],
)
def test_what_is_chosen(name: str, platform: str, length: int, changes: dict, expected: str):
    fields = {"rule": PLAIN, "head_dim": 64, "dtype": "bfloat16", **changes}
    assert choose_kind(name, platform, length=length, **fields) == expected


@pytest.mark.parametrize(
    "name, platform, fields",
    [
        ("splash", "cpu", {}),
        ("splash", "gpu", {}),
        ("cudnn", "tpu", {"dtype": "bfloat16"}),
        ("cudnn", "gpu", {}),  # it needs bfloat16
        ("splash", "tpu", {"windows": (4, None)}),
        ("cudnn", "gpu", {"dtype": "bfloat16", "windows": (4, None)}),
        ("cudnn", "gpu", {"dtype": "bfloat16", "head_dim": 12}),
        ("cudnn", "gpu", {"dtype": "bfloat16", "attention_softcap": 5.0}),
    ],
)
def test_a_named_one_that_cannot_be_had_is_refused(name: Any, platform: str, fields: dict):
    dtype = fields.get("dtype", "float32")
    changes = {name: value for name, value in fields.items() if name != "dtype"}
    cfg = dataclasses.replace(TINY, **changes)
    with refuses("model.attention"):
        compute_as_set(ModelConfig(compute_dtype=dtype, attention=name), cfg, platform)


def test_what_can_be_had_is_not_refused():
    pairs: Any = [("splash", "tpu"), ("cudnn", "gpu"), ("xla", "gpu"), ("auto", "cpu")]
    for name, platform in pairs:
        settings = ModelConfig(compute_dtype="bfloat16", attention=name)
        assert compute_as_set(settings, TINY, platform) == Compute("bfloat16", name)


def test_the_dtype_by_itself_is_float32_on_cpus_and_bfloat16_elsewhere():
    for platform, dtype in (("cpu", "float32"), ("gpu", "bfloat16"), ("tpu", "bfloat16")):
        assert compute_as_set(ModelConfig(), TINY, platform).dtype == dtype
        for asked in ("float32", "bfloat16"):
            settings = ModelConfig(compute_dtype=asked)
            assert compute_as_set(settings, TINY, platform).dtype == asked


def test_the_platform_is_the_meshs():
    own = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    assert platform_of(own) == jax.devices()[0].platform


def test_models_whose_layers_see_unlike_distances_are_computed_plainly():
    """The kernel serves one window for all layers, and XLA several, with the same numbers."""
    ids = jnp.ones((1, 128), jnp.int32)
    for windows, kind in [((5, 5), "splash"), ((), "splash"), ((5, None), "xla")]:
        model, _, _ = random_model(windows=windows, attention="splash")
        assert model.choose_attention(ids, ids, None)[0] == kind
