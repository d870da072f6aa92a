"""The interpreted kernel for GPU, compared with XLA's attention over the same ring."""

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.gpu_kernel import STORAGE
from helpers.refusals import refuses

from vinejax.engine.cache import DecodeStep, use_kernel
from vinejax.engine.gpu import attention as kernel
from vinejax.engine.gpu.kernel_ring import KernelRing
from vinejax.engine.layout import SeparateKV
from vinejax.engine.ring import Ring, RingLayer, RingStorage
from vinejax.engine.shared_attention import Queries, assign_lanes
from vinejax.model.attention import AttentionRule
from vinejax.model.config import LayerFacts
from vinejax.model.rope import Rope, rotate

ROWS, COLUMNS, WIDTH = 3, 150, 96  # of the window and of the ring: two or three tiles
STEP = 250  # the ring is in its third turn, so that most slots see its last and first columns
# Columns of the trunk, and older columns of the ring, that each slot sees, around the tiles' edges.
VISIBLE = np.array([0, 1, 63, 64, 65, 128, 129, COLUMNS])
AGES = np.array([0, WIDTH - 1, 64, 63, 1, 65, 40, 0])
IDLE = 3
PLAIN = AttentionRule(scale=0.1)
NARROW = AttentionRule(scale=0.1, softcap=3.0, window=70)
TOLERANCE = {"float32": 2e-6, "bfloat16": 8e-3}


class Step(NamedTuple):
    """The inputs of one layer's attention in a decode step, before RoPE."""

    queries: Queries
    q: jax.Array  # [B, K, G, H]
    k: jax.Array  # [B, 1, K, H]
    v: jax.Array  # [B, 1, K, H]
    trunks: SeparateKV
    ring: RingLayer


class Layer(NamedTuple):
    """What a layer fixes; hashable, for programs that tests share."""

    rule: AttentionRule
    rope: Rope


def step_of(K: int, per_head: int, head_dim: int, dtype: str) -> Step:
    rng = np.random.default_rng(4)

    def draw(*shape: int) -> jax.Array:
        return jnp.array(rng.normal(size=shape), jnp.float32).astype(dtype)

    B, H = len(AGES), head_dim
    row, ages = rng.integers(0, ROWS, B), np.where(np.arange(B) == IDLE, 0, AGES)
    numbers = (jnp.array(x, jnp.int32) for x in (row, VISIBLE, ages))
    return Step(
        Queries(jnp.arange(B) != IDLE, *numbers),
        draw(B, K, per_head, H),
        draw(B, 1, K, H),
        draw(B, 1, K, H),
        SeparateKV(draw(ROWS, K, COLUMNS, H), draw(ROWS, K, COLUMNS, H)),
        RingLayer([draw(B, K, WIDTH, H)], [draw(B, K, WIDTH, H)]),
    )


def facts_of(layer: Layer, head_dim: int) -> LayerFacts:
    frequencies = layer.rope.frequencies(head_dim)
    return LayerFacts(frequencies, np.array(1.1, np.float32), np.array(0, np.int32))


@functools.partial(jax.jit, static_argnames="layer")
def by_kernel(step: Step, layer: Layer) -> tuple[jax.Array, RingLayer]:
    queries = step.queries
    ring = KernelRing([], STORAGE, len(AGES))
    attend = ring.attention(DecodeStep(jnp.int32(STEP), queries, assign_lanes(queries, ROWS, 1)))
    facts = facts_of(layer, step.q.shape[-1])
    return attend(step.q, step.k, step.v, step.trunks, step.ring, layer.rule, facts)


@functools.partial(jax.jit, static_argnames="layer")
def by_xla(step: Step, layer: Layer) -> tuple[jax.Array, RingLayer]:
    queries, facts = step.queries, facts_of(layer, step.q.shape[-1])
    lanes = assign_lanes(queries, ROWS, len(AGES))

    def turn(x: jax.Array) -> jax.Array:
        heads = x.reshape(len(AGES), 1, -1, x.shape[-1])
        turned = rotate(heads, queries.position[:, None], facts.frequencies, facts.rope_scale)
        return turned.reshape(x.shape)

    ring = Ring([], RingStorage("gpu", shares_heads=True), len(AGES))
    attend = ring.attention(DecodeStep(jnp.int32(STEP), queries, lanes))
    return attend(turn(step.q), turn(step.k), step.v, step.trunks, step.ring, layer.rule)


def check(step: Step, layer: Layer, expected_step: Step | None = None) -> None:
    (mixed, written), (expected, expected_ring) = jax.device_get(
        (by_kernel(step, layer), by_xla(expected_step or step, layer))
    )
    atol, busy = TOLERANCE[step.q.dtype.name], np.arange(len(AGES)) != IDLE
    difference = np.abs(mixed.astype(np.float32) - expected.astype(np.float32))
    assert difference[busy].max() < atol
    assert np.isfinite(mixed.astype(np.float32)).all(), "an idle slot sees its own column"
    for new, old, there in zip(written, expected_ring, step.ring, strict=True):
        np.testing.assert_allclose(
            new[0].astype(np.float32), old[0].astype(np.float32), atol=1e-6, rtol=2**-7
        )
        others = np.arange(WIDTH) != STEP % WIDTH
        assert np.array_equal(new[0][:, :, others], np.asarray(there[0])[:, :, others])


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("dtype", "K", "per_head", "head_dim", "rule", "rotated"),
    [
        ("float32", 2, 3, 64, NARROW, 1.0),
        ("bfloat16", 1, 7, 64, PLAIN, 1.0),
        ("float32", 3, 1, 64, PLAIN, 0.5),
        ("float32", 1, 8, 256, NARROW, 1.0),
        ("bfloat16", 2, 6, 128, AttentionRule(0.1, window=5), 0.5),
        ("float32", 1, 2, 32, AttentionRule(0.1, softcap=2.0), 0.25),
        ("bfloat16", 2, 4, 128, PLAIN, 1.0),
        ("float32", 1, 20, 16, NARROW, 1.0),
        ("float32", 2, 5, 128, AttentionRule(0.1, window=1), 1.0),
    ],
)
def test_a_step_is_that_of_xla(
    dtype: str, K: int, per_head: int, head_dim: int, rule: AttentionRule, rotated: float
):
    """`rotated` is the share of a head's channels that RoPE turns."""
    layer = Layer(rule, Rope(rope_theta=100.0, partial_rotary_factor=rotated))
    check(step_of(K, per_head, head_dim, dtype), layer)


def test_a_column_too_many_or_too_few_is_seen():
    """The comparison above is precise enough: it fails if one slot sees a column more or less."""
    step, layer = step_of(2, 3, 64, "float32"), Layer(NARROW, Rope(rope_theta=100.0))
    queries = step.queries
    changed: list[dict[str, Any]] = [
        {"visible": queries.visible.at[1].add(1)},
        {"age": queries.age.at[6].add(-1)},
        {"row": queries.row.at[4].set((queries.row[4] + 1) % ROWS)},
    ]
    for fields in changed:
        with pytest.raises(AssertionError):
            check(step._replace(queries=queries._replace(**fields)), layer, expected_step=step)


def test_the_columns_of_a_tile():
    assert [kernel.tile_columns(width, 2) for width in (16, 64, 128, 256)] == [64, 64, 64, 32]
    assert [kernel.tile_columns(width, 4) for width in (16, 64, 128, 256)] == [64, 64, 32, 16]


def test_where_the_kernel_is_used():
    for capability, can in (("7.5", False), ("8.0", True), ("12.0", True), ("gfx90a", False)):
        card = SimpleNamespace(compute_capability=capability)
        assert use_kernel("auto", "gpu", 64, card) == can
    with refuses("rollout.attention"):
        use_kernel("kernel", "gpu", 64, SimpleNamespace(compute_capability="7.5"))
