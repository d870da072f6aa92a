"""The plan of a phase: it has every branch once, even shards and rows, and few shapes."""

import random
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import loop_cases
from jax.sharding import AbstractMesh

from vinejax.core.settings import MeshConfig
from vinejax.core.shapes import bucket, doubled, packed_length, padded_length, row_length
from vinejax.engine.branches import Branch, BranchSet, Feeder
from vinejax.engine.layout import CacheLayout
from vinejax.engine.memory import (
    EngineSettings,
    Workload,
    cache_bytes,
    queue_size,
    sizes_of,
    slots_for,
)
from vinejax.engine.ring import RingStorage, ring_blocks
from vinejax.engine.row_jobs import StartedPhase, assign, lanes_per_row, window_shape
from vinejax.model.sharding import AXES, make_mesh


def random_work(seed: int, trunks: int, branches: int) -> tuple[list[int], list[int]]:
    """The trunks and the budgets of random branches; some budgets are 0."""
    draw = random.Random(seed)
    return [draw.randrange(trunks) for _ in range(branches)], [
        draw.choice([0, *range(1, 60)]) for _ in range(branches)
    ]


def branch_set_of(lengths: list[int], trunk_of: list[int], budgets: list[int]) -> BranchSet:
    """Branches at the ends of trunks of these lengths."""
    branches = [Branch(trunk, lengths[trunk], seed=i) for i, trunk in enumerate(trunk_of)]
    trunks = [[0] * length for length in lengths]
    return BranchSet(trunks, branches, budgets, max(lengths), [False] * len(trunks))


@pytest.mark.parametrize("shards", [1, 2, 8])
@pytest.mark.parametrize("trunks", [1, 3, 40])
def test_every_branch_is_served_once(shards, trunks):
    trunk_of, budgets = random_work(trunks, trunks, 300)
    lengths = random.Random(0).choices(range(1, 200), k=trunks)
    jobs = assign(branch_set_of(lengths, trunk_of, budgets), shards, rows=4)
    served = [i for of_shard in jobs for job in of_shard for i in job.items]
    assert sorted(served) == [i for i, budget in enumerate(budgets) if budget]
    for of_shard in jobs:
        first = 0
        for job in of_shard:
            assert {trunk_of[i] for i in job.items} == {job.trunk}
            assert job.work == sum(budgets[i] for i in job.items)
            assert [budgets[i] for i in job.items] == sorted(
                (budgets[i] for i in job.items), reverse=True
            )
            assert job.first == first
            first += len(job.items)
        keys = [(job.work.bit_length(), lengths[job.trunk]) for job in of_shard]
        assert keys == sorted(keys, reverse=True), "the most work, then the longest trunk"
    totals = [sum(job.work for job in of_shard) for of_shard in jobs]
    # The largest job is assigned first, so no shard is above the mean by more than one job.
    largest = max(job.work for of_shard in jobs for job in of_shard)
    assert max(totals) - sum(totals) / shards <= largest


def test_a_trunk_with_most_of_the_work_gets_several_rows_at_once():
    trunk_of, budgets = [0] * 900 + list(range(1, 11)) * 10, [10] * 1000
    (jobs,) = assign(branch_set_of([5] * 11, trunk_of, budgets), shards=1, rows=8)
    parts = [job for job in jobs if job.trunk == 0]
    assert len(parts) == 7 and jobs[:7] == parts, "first, and no more than there are rows"
    works = [job.work for job in parts]
    assert max(works) - min(works) <= 10


def jobs_of(works: list[list[int]], shards: int, rows: int = 4, **options: Any) -> list[Any]:
    """(trunk, work, first item) of each shard's jobs; `works` has the budgets of each trunk."""
    trunk_of = [trunk for trunk, budgets in enumerate(works) for _ in budgets]
    branch_set = branch_set_of(
        [5] * len(works), trunk_of, [n for budgets in works for n in budgets]
    )
    jobs = assign(branch_set, shards, rows, **options)
    return [[(job.trunk, job.work, job.first) for job in of_shard] for of_shard in jobs]


def test_a_trunk_is_divided_by_the_mean_work_of_a_row():
    """The trunks have 1.5 and 0.5 times the mean work; parts are rounded down on one shard."""
    works = [[1] * 12, [1] * 4]
    assert jobs_of(works, shards=1, rows=2) == [[(0, 12, 0), (1, 4, 12)]]
    assert jobs_of(works, shards=2, rows=1) == [[(0, 6, 0), (1, 4, 6)], [(0, 6, 0)]]
    assert jobs_of([[1] * 24, [1] * 8], shards=1, rows=4) == [
        [(0, 8, 0), (0, 8, 8), (0, 8, 16), (1, 8, 24)]
    ]


def test_no_job_is_without_items_unless_its_trunk_is_scored():
    assert jobs_of([[50, 50]], shards=1, rows=8) == [[(0, 50, 0), (0, 50, 1)]]


def test_shards_get_the_largest_jobs_first():
    works = [[3], [5], [4], [8]]
    assert jobs_of(works, shards=2, rows=9) == [[(3, 8, 0), (0, 3, 1)], [(1, 5, 0), (2, 4, 1)]]


def test_a_phase_that_has_begun_keeps_its_shards_level():
    """A trunk goes to the shard that holds it, unless much less work is left on another.

    Here that is if the shard has more than 2 * 10 + 8 * 1 tokens left; items follow earlier ones.
    """
    idle = StartedPhase(items=[7, 9], work=[30, 10], shard_of={})
    assert jobs_of([[1]], shards=2, phase=idle) == [[], [(0, 1, 9)]]
    for work, shard in ((28, 0), (29, 1)):
        held = StartedPhase(items=[7, 9], work=[work, 10], shard_of={0: 0})
        found = jobs_of([[1]], shards=2, phase=held)
        assert found == [[(0, 1, 7)] if shard == 0 else [], [(0, 1, 9)] if shard else []], work
    even = StartedPhase(items=[0, 0], work=[10, 9], shard_of={0: 0})
    assert jobs_of([[1]], shards=2, phase=even) == [[(0, 1, 0)], []], "9 + 9 + 8 is not exceeded"


def test_scored_trunks_have_one_row_each():
    """Those with branches have a job already; the others are divided, the longest first."""
    branch_set = branch_set_of([5, 6, 9, 7, 8], [0, 0], [4, 4])
    branch_set.scored[:] = [True, False, True, True, True]
    for_scores = [
        [(job.trunk, len(job.items)) for job in of_shard]
        for of_shard in assign(branch_set, shards=2, rows=1)
    ]
    assert for_scores == [[(0, 1), (2, 0), (3, 0)], [(0, 1), (4, 0)]]


@pytest.mark.parametrize("slots", [1, 7, 64, 256])
@pytest.mark.parametrize("trunks", [1, 2, 9, 500])
@pytest.mark.parametrize("branches_per_trunk", [1, 5, 8, 108])
def test_a_window_has_lanes_for_all_slots(slots, trunks, branches_per_trunk):
    rows, lanes = window_shape(slots, trunks, trunks * branches_per_trunk)
    assert rows * lanes >= slots and lanes <= slots
    assert rows == 1 or rows / 2 < trunks
    if trunks >= rows and rows > 1:
        assert rows * branches_per_trunk >= min(2 * slots, trunks * branches_per_trunk) / 2, (
            "branches wait on each row"
        )


def test_a_number_of_branches_that_varies_needs_few_shapes():
    """In the first run of configs/tiny.py, 256 trunks have 756 to 1,062 branches by iteration."""
    assert {window_shape(128, 256, count) for count in range(512, 2048)} == {(256, 2)}
    assert {queue_size(count) for count in range(1, 4096)} == {4096}
    assert [queue_size(count) for count in (4096, 8191, 8192, 40_000)] == [8192, 8192, 16384, 65536]


def test_a_window_that_memory_cut_down_still_serves_all_slots():
    assert [lanes_per_row(64, rows) for rows in (1, 2, 3, 8, 64, 512)] == [64, 64, 44, 16, 2, 1]


def test_buckets_are_few_and_close():
    sizes = [bucket(n) for n in range(1, 5000)]
    assert sorted(set(sizes))[:7] == [16, 24, 32, 48, 64, 96, 128]
    assert len(set(sizes)) < 20
    for n, size in enumerate(sizes, start=1):
        assert n <= size and bucket(size) == size
        assert n <= 16 or size - n < size / 3
    assert sizes == sorted(sizes)
    assert [bucket(n, least=32) for n in (1, 32, 33, 49)] == [32, 32, 48, 64]


def test_rows_of_many_tokens_come_in_four_lengths_per_doubling():
    sizes = [row_length(n) for n in range(1, 5000)]
    assert sizes[:1024] == [bucket(n, least=32) for n in range(1, 1025)]
    assert sorted(set(sizes[1024:])) == [1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 5120]
    assert sizes == sorted(sizes) and {row_length(size) for size in sizes} == set(sizes)
    assert all(size >= n for n, size in enumerate(sizes, start=1))
    assert all(size - n < size / 5 for n, size in enumerate(sizes, start=1) if n > 1024)


def test_packed_rows_have_two_lengths_or_four_per_doubling():
    assert {packed_length(300, n) for n in range(1, 301)} == {192, 384}
    assert [packed_length(32, n) for n in (5, 32)] == [32, 32], "no shorter than a row may be"
    assert {packed_length(1536, n) for n in range(1, 1537)} == {768, 1024, 1280, 1536}
    assert {packed_length(2536, n) for n in range(1, 2537)} == {1280, 1536, 1792, 2048, 2560}
    for limit in (40, 300, 1000, 1536, 2536):
        sizes = [packed_length(limit, n) for n in range(1, 2 * limit)]
        assert sizes == sorted(sizes) and all(size >= n for n, size in enumerate(sizes, start=1))
        assert {row_length(size) for size in sizes} == set(sizes)


def test_parts_of_a_limit_are_two():
    for limits in ([300, 556], [32, 80], [512, 1536]):
        sizes = [padded_length(limits, n) for n in range(1, limits[-1] + 1)]
        assert sizes == sorted(sizes) and len(set(sizes)) <= 4
        assert all(size >= n for n, size in enumerate(sizes, start=1))
        assert sizes[-1] == bucket(limits[-1], least=32)  # near a limit as little padding as ever
        assert {bucket(size, least=32) for size in sizes} == set(sizes)
    assert [padded_length([300, 556], n) for n in (100, 200, 384, 385, 600, 900)] == [
        *(192, 384, 384, 768, 768, 1024),
    ]
    assert [padded_length([768], n, halvings=2) for n in (100, 193, 400)] == [192, 384, 768]
    assert [padded_length([], n) for n in (5, 33)] == [32, 48]
    assert [doubled(n, least=64) for n in (1, 64, 65, 300)] == [64, 64, 128, 512]


def test_phases_of_a_run_have_few_sizes():
    """For all lengths and budgets of prompts of up to 300 and responses of up to 256 tokens."""
    model, mesh = loop_cases.model(), make_mesh(MeshConfig())

    def shapes(limits: tuple[int, ...], longest: int, budget: int) -> tuple[int, int]:
        settings = EngineSettings(64, limits=limits, max_tokens=256 if limits else None)
        workload = Workload(16, 64, longest, budget)
        sizes, _ = sizes_of(model, mesh, "cpu", 1 << 30, settings, workload)
        return sizes.columns, sizes.width

    lengths, budgets = range(1, 557, 5), range(1, 257, 17)
    with_limits = {shapes((300, 556), n, m) for n in lengths for m in budgets}
    without = {shapes((), n, m) for n in lengths for m in budgets}
    assert len(with_limits) <= 8 < 60 < len(without)


def test_a_gpu_has_longer_chunks_and_larger_prefills():
    """With at most 2**14 tokens, unless 8 trunks have more; a feed's trunks enter one by one."""
    model, mesh = loop_cases.model(), make_mesh(MeshConfig())

    def shapes(platform: str, longest: int, budget: int, feed: Feeder | None = None) -> list[int]:
        workload, settings = Workload(1000, 2000, longest, budget), EngineSettings(512)
        sizes, _ = sizes_of(model, mesh, platform, 1 << 34, settings, workload, feed)
        return [sizes.batch, sizes.chunk]

    assert shapes("cpu", 200, 64) == [8, 8] and shapes("cpu", 200, 512) == [8, 64]
    assert shapes("gpu", 200, 64) == [64, 32] and shapes("gpu", 200, 512) == [64, 64]
    assert shapes("gpu", 1000, 64) == [16, 32] and shapes("gpu", 5000, 64) == [8, 32]
    assert shapes("gpu", 200, 64, Feeder(lambda: None, 100, 300, at_once=10)) == [8, 32]


def test_a_prefill_leaves_rows_that_keep_the_slots_busy():
    """It fills a quarter of the rows; half of 16 on a CPU, where eight trunks need no padding."""
    model, mesh = loop_cases.model(), make_mesh(MeshConfig())

    def batch(platform: str, trunks: int, branches: int) -> list[int]:
        workload, settings = Workload(trunks, branches, 200, 64), EngineSettings(64)
        sizes, _ = sizes_of(model, mesh, platform, 1 << 34, settings, workload)
        return [sizes.rows, sizes.batch]

    assert batch("cpu", 64, 8) == [16, 8] and batch("tpu", 64, 8) == [16, 4]
    assert batch("cpu", 8, 8) == [8, 2] and batch("cpu", 64, 64) == [64, 8]


def test_slots_on_a_gpu_follow_its_memory():
    """1,024 slots of 512 tokens on each shard, or half as many until they take two thirds."""
    model, mesh = loop_cases.model(), make_mesh(MeshConfig())
    whole = 1024 * cache_bytes(model, mesh, 512)
    for memory, expected in (
        (whole * 3 // 2 + 1, 1024), (whole * 3 // 2 - 1, 512), (whole // 5, 128), (0, 8),
    ):  # fmt: skip
        assert slots_for(model, mesh, "gpu", memory, budget=500) == expected
        assert slots_for(model, mesh, "cpu", memory, 500) == 256
        assert slots_for(model, mesh, "tpu", memory, 500) == 256
    eight = AbstractMesh((2, 2, 2), AXES)
    assert slots_for(model, eight, "gpu", whole, budget=500) == 4 * 1024, "half the KV heads each"


def test_fed_branches_have_a_row_each():
    """A row then has one lane, as XLA computes empty lanes, too.

    With more branches than rows, rows have a few lanes each, enough for all slots.
    """
    model, mesh = loop_cases.model(), make_mesh(MeshConfig())
    for trunks, branches, lanes in ((8, 40, 1), (1, 64, 1), (16, 128, 1), (16, 2000, 8)):
        feed = Feeder(lambda: None, 16 * branches, 300, at_once=branches)
        workload = Workload(trunks, branches, 300, 16)
        sizes, _ = sizes_of(model, mesh, "cpu", 1 << 30, EngineSettings(128), workload, feed)
        assert sizes.lanes == lanes
        assert sizes.slots >= min(branches, 128) and sizes.rows >= min(branches, 256)
        assert sizes.lanes * trunks >= 128 or lanes == 1


def test_the_ring_is_cut_into_equal_blocks():
    for n in range(1, 3000):
        width = bucket(n)
        blocks = ring_blocks(width, "tpu")
        assert 1 <= blocks <= 8 and width % blocks == 0 and width // blocks >= min(width, 32)
        assert ring_blocks(width, "gpu") == 1


def test_the_layout_of_the_ring_depends_on_the_platform():
    """Axes: b slots, k KV heads, s columns, h head width."""

    def axes(platform: str, slots: int, shares_heads: bool = True) -> tuple[str, str]:
        layout = RingStorage(platform, shares_heads).layout(slots)
        return layout.keys.axes, layout.values.axes

    assert axes("tpu", 64) == ("skbh", "skbh")  # the column that a step writes is outermost
    assert axes("tpu", 256) == ("skhb", "skhb")  # and slots fill the lanes
    assert axes("gpu", 64) == ("bksh", "bksh") == axes("cpu", 64, shares_heads=False)
    assert axes("cpu", 64) == ("bkhs", "bksh")


@pytest.mark.parametrize("axes", ["bksh", "bkhs", "skbh", "skhb"])
def test_products_and_mixes_do_not_depend_on_the_layout(axes):
    draw = np.random.default_rng(0)
    sizes = {"b": 3, "k": 2, "g": 4, "s": 5, "h": 6}
    q, cache, weights = (
        jnp.array(draw.normal(size=tuple(sizes[axis] for axis in letters)), jnp.float32)
        for letters in ("bkgh", axes, "bkgs")
    )
    layout = CacheLayout(axes)
    assert list(cache.shape) == layout.shape(sequences=3, kv_heads=2, columns=5, head_dim=6)
    plain = cache.transpose([axes.index(axis) for axis in "bksh"])
    np.testing.assert_allclose(
        layout.products(q, cache), q @ plain.swapaxes(2, 3), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(layout.mix(weights, cache), weights @ plain, rtol=1e-4, atol=1e-5)
    column = plain[:, :, :1].swapaxes(1, 2)  # [B, 1, K, H]
    first = cache.take(jnp.array([0]), axis=layout.column_axis)
    np.testing.assert_array_equal(layout.column(column), first)
