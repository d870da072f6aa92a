"""The interpreted kernels of decoding, compared with XLA's attention."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.refusals import refuses
from jax.experimental.pallas import tpu as pltpu

from vinejax.engine import cache
from vinejax.engine import shared_attention as attention
from vinejax.engine.cache import use_kernel
from vinejax.engine.layout import WINDOW, JoinedKV, SeparateKV
from vinejax.engine.ring import RingLayout, ring_part
from vinejax.engine.shared_attention import Queries
from vinejax.engine.tpu import ragged, schedule
from vinejax.engine.tpu.paged import PagedCache
from vinejax.engine.tpu.pages import Pages
from vinejax.engine.tpu.schedule import BLOCK
from vinejax.model.attention import AttentionRule

COLUMNS = 512  # columns of a row and of a slot: two blocks
COUNTS = (0, 1, 127, 128, 129, 255, 256, 257, COLUMNS)  # columns that a slot, or a lane, sees
SLOTS = 12
BLOCKS = COLUMNS // BLOCK  # blocks of a slot
PLAIN = AttentionRule(scale=0.1)
NARROW = AttentionRule(scale=0.1, softcap=3.0, window=100)
TOLERANCE = {"float32": 1e-6, "bfloat16": 2e-3}
LAYOUT = RingLayout(WINDOW, WINDOW)


class Step(NamedTuple):
    """The inputs of one layer's attention in a decode step."""

    queries: Queries
    lanes: attention.Lanes
    q: jax.Array  # [B, K, G, H]
    k: jax.Array  # [B, 1, K, H]
    v: jax.Array  # [B, 1, K, H]
    trunks: jax.Array  # [W, K, S, 2 * H]
    pool: jax.Array  # [P, K, BLOCK, 2 * H] with one more page than the slots can hold
    pages: Pages  # pages of the slots in random order; none is free


def step_of(per_head: int, head_dim: int, rows: int, lanes: int, dtype: str, seed: int = 4) -> Step:
    """A step in which slots and lanes see each of COUNTS; slots that see no column are idle.

    Values and their means are below 1, where the rounding of a bfloat16 is below the tolerance.
    """
    rng = np.random.default_rng(seed)
    K = 4

    def draw(*shape: int) -> jax.Array:
        return jnp.array(rng.normal(size=shape), jnp.float32).astype(dtype)

    def draw_values(*shape: int) -> jax.Array:
        return jnp.array(rng.uniform(-1, 1, shape), jnp.float32).astype(dtype)

    def draw_cache(sequences: int, columns: int) -> jax.Array:
        shape = sequences, K, columns, head_dim
        return jnp.concatenate([draw(*shape), draw_values(*shape)], axis=-1)

    own = np.resize(COUNTS, SLOTS)
    visible = rng.permutation(np.resize(COUNTS, SLOTS))
    row = np.arange(SLOTS) % rows
    queries = Queries(
        busy=jnp.array(own > 0),
        row=jnp.array(row, jnp.int32),
        visible=jnp.array(visible, jnp.int32),
        age=jnp.array(np.maximum(own, 1) - 1, jnp.int32),
    )
    return Step(
        queries,
        attention.assign_lanes(queries, rows, lanes),
        draw(SLOTS, K, per_head, head_dim),
        draw(SLOTS, 1, K, head_dim),
        draw_values(SLOTS, 1, K, head_dim),
        draw_cache(rows, COLUMNS),
        draw_cache(SLOTS * BLOCKS + 1, BLOCK),
        pages_of(rng.permutation(SLOTS * BLOCKS + 1)),
    )


def pages_of(order: np.ndarray) -> Pages:
    """The slots hold all pages except the first, in this order."""
    none = jnp.zeros(len(order), jnp.int32)
    return Pages(jnp.array(order[1:].reshape(SLOTS, BLOCKS), jnp.int32), none, none[:1])


def by_kernel(
    step: Step, rule: AttentionRule, cores: int, interpret: bool
) -> tuple[jax.Array, jax.Array]:
    def run(step: Step):
        paged = PagedCache([JoinedKV(step.pool)], step.pages, cores, interpret)
        attend = paged.attention(cache.DecodeStep(jnp.int32(0), step.queries, step.lanes))
        mixed, pool = attend(step.q, step.k, step.v, JoinedKV(step.trunks), paged.layers[0], rule)
        return mixed, pool.kv

    return jax.jit(run)(step)


def written(step: Step) -> jax.Array:
    """The pool with the new column of every busy slot."""
    new = jnp.concatenate([step.k, step.v], axis=-1)[:, 0]  # [B, K, 2 * H]
    age = step.queries.age
    page = step.pages.of_slot[jnp.arange(SLOTS), age // BLOCK]
    page = jnp.where(step.queries.busy, page, len(step.pool))
    return step.pool.at[page, :, age % BLOCK].set(new, mode="drop")


def by_xla(step: Step, rule: AttentionRule) -> jax.Array:
    """The attention by way of a ring, into which the slots' own columns are rotated."""
    H, now = step.q.shape[-1], 77
    age = step.queries.age
    place = (now - age[:, None] + jnp.arange(COLUMNS)) % COLUMNS  # [B, S] of each own column
    source = jnp.argsort(place, axis=1)
    columns = written(step)[step.pages.of_slot].swapaxes(1, 2)  # [B, K, BLOCKS, BLOCK, 2 * H]
    columns = columns.reshape(SLOTS, -1, COLUMNS, 2 * H)
    turned = jnp.take_along_axis(columns, source[:, None, :, None], axis=2)
    keys, values = turned[..., :H], turned[..., H:]
    own = ring_part(step.q, [keys], [values], jnp.int32(now), age, rule, LAYOUT)
    trunk_keys, trunk_values = step.trunks[..., :H], step.trunks[..., H:]
    trunk = attention.trunk_part(step.q, SeparateKV(trunk_keys, trunk_values), step.lanes, rule)
    return attention.merge(trunk, own)


def check(step: Step, rule: AttentionRule, cores: int = 1, interpret: bool = True) -> None:
    mixed, pool = by_kernel(step, rule, cores, interpret)
    busy = np.array(step.queries.busy)
    expected = np.array(jax.jit(by_xla, static_argnums=1)(step, rule))
    atol = TOLERANCE[step.q.dtype.name]
    np.testing.assert_allclose(np.array(mixed)[busy], expected[busy], rtol=0, atol=atol)
    assert np.isfinite(mixed).all(), "an idle slot sees nothing, or what another does"
    assert np.array_equal(pool.astype(jnp.float32), written(step).astype(jnp.float32))


@pytest.mark.slow
@pytest.mark.parametrize("rule", [NARROW, PLAIN], ids=["narrow", "plain"])
def test_a_step_is_that_of_xla(rule: AttentionRule):
    check(step_of(per_head=1, head_dim=128, rows=2, lanes=24, dtype="float32"), rule)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "dtype", "per_head", "head_dim", "rows", "lanes", "cores"),
    [
        (PLAIN, "float32", 1, 64, 4, 24, 2),
        (NARROW, "bfloat16", 8, 64, 4, 3, 1),
        (PLAIN, "float32", 8, 128, 12, 1, 2),
        (NARROW, "bfloat16", 3, 256, 3, 8, 1),
        (NARROW, "float32", 1, 24, 2, 6, 1),
    ],
)
def test_a_step_is_that_of_xla_at_other_shapes(
    rule: AttentionRule, dtype: str, per_head: int, head_dim: int, rows: int, lanes: int, cores: int
):
    check(step_of(per_head, head_dim, rows, lanes, dtype), rule, cores)


@pytest.mark.slow
def test_copies_are_waited_for_and_race_with_nothing():
    """As on a TPU, a copy runs when the kernel waits for it, and memory holds NaN before."""
    interpret = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
    step = step_of(8, 64, rows=4, lanes=3, dtype="bfloat16")
    with pltpu.force_tpu_interpret_mode(interpret):
        check(step, NARROW, interpret=False)
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter

    assert interpreter.races is not None and not interpreter.races.races_found


@pytest.mark.slow
def test_lanes_of_a_row_in_several_groups(monkeypatch: pytest.MonkeyPatch):
    """Several groups read one row if a row has more queries than MAX_QUERIES."""
    monkeypatch.setattr(ragged, "MAX_QUERIES", 8)
    assert ragged._num_groups(12, 2) == 3
    check(step_of(2, 16, rows=2, lanes=12, dtype="float32"), NARROW)


@pytest.mark.slow
def test_a_column_too_many_or_too_few_is_seen(monkeypatch: pytest.MonkeyPatch):
    """The comparison above, of its last step, is precise enough: it fails off by one."""
    step = step_of(1, 24, rows=2, lanes=6, dtype="float32")

    def one_more(first: jax.Array, *others: Any):
        return schedule.make_schedule(jnp.where(first > 0, first - 1, first), *others)

    def one_less(first: jax.Array, limit: jax.Array, *others: Any):
        return schedule.make_schedule(first, jnp.where(limit > 1, limit - 1, limit), *others)

    for off_by_one in (one_more, one_less):
        monkeypatch.setattr(ragged, "make_schedule", off_by_one)
        with pytest.raises(AssertionError):
            check(step, NARROW)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("queries", [1, 2, 5, 8])
def test_rows_of_a_step_are_whole_registers_or_all_rows(queries: int, cores: int):
    """Pallas compiles no other blocks: two cores had six groups each, for twelve slots."""
    for slots in (1, 6, 8, 12, 24, 48, 192):
        for least_rows in {1, queries}:
            grid = schedule.grid_for(slots, queries, 4, 128, cores, least_rows)
            assert grid.total >= slots
            for rows in {least_rows, queries}:
                assert grid.groups * rows % 8 == 0 or grid.total == grid.groups


@pytest.mark.parametrize("cores", [1, 2])
def test_the_schedule_lists_each_live_block_once(monkeypatch: pytest.MonkeyPatch, cores: int):
    monkeypatch.setattr(schedule, "OPERAND_BYTES", 2**14)  # several steps of the grid
    rng = np.random.default_rng(1)
    limit = rng.choice([0, 1, 255, 256, 257, 1023, 1024], (24, 3))
    first = np.maximum(limit - rng.choice([1, 260, 1200], (24, 1)), 0)
    grid = schedule.grid_for(24, 3, 2, 128, cores, 3)
    assert grid.cores == cores and grid.parts > 1
    assert 24 <= grid.total < 24 + 8 * grid.cores and grid.groups * 3 % 8 == 0
    sees = first < limit
    live = []
    for group in np.flatnonzero(sees.any(axis=1)).tolist():
        begin, end = first[group][sees[group]].min(), limit[group][sees[group]].max()
        live += [(group, block) for block in range(begin // BLOCK, -(-end // BLOCK))]
    sources = rng.permutation(24 * 4).reshape(24, 4)
    make = functools.partial(schedule.make_schedule, grid=grid, max_items=len(live))
    found = jax.jit(make)(jnp.array(first), jnp.array(limit), jnp.array(sources))
    count = int(found.first_item[-1])
    listed = list(zip(found.group[:count].tolist(), found.block[:count].tolist(), strict=True))
    assert listed == live and len(found.group) == len(live)
    assert found.source[:count].tolist() == [sources[item] for item in live]
    for step, (begin, end) in enumerate(
        zip(found.first_item[:-1], found.first_item[1:], strict=True)
    ):
        groups = range(step * grid.groups, (step + 1) * grid.groups)
        assert all(group in groups for group, _ in listed[int(begin) : int(end)])


def test_the_kernel_is_used_where_it_can_be():
    assert use_kernel("auto", "tpu", 128) and use_kernel("auto", "tpu", 64)
    assert not use_kernel("auto", "tpu", 96)
    assert use_kernel("auto", "gpu", 256) and not use_kernel("auto", "gpu", 96)
    assert not use_kernel("auto", "cpu", 128)
    assert not use_kernel("xla", "tpu", 128) and not use_kernel("xla", "gpu", 128)
    assert use_kernel("kernel", "cpu", 24), "interpreted"
    with refuses("rollout.attention"):
        use_kernel("kernel", "gpu", 96)
    with refuses("rollout.attention"):
        use_kernel("kernel", "tpu", 96)
