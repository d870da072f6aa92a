"""The pages of the slots' own tokens: which slots take pages, which wait, and the same tokens."""

import copy
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import fed_cases
from helpers.model_oracles import SAMPLED_MODELS, Model, assert_same, random_model

from vinejax.core.errors import RoomError
from vinejax.core.settings import SampleConfig
from vinejax.engine import drain
from vinejax.engine import memory as arrays
from vinejax.engine.branches import Branch, Feeder, Grown
from vinejax.engine.cache import Sizes
from vinejax.engine.engine import Engine
from vinejax.engine.tpu import kernel_body, page_body, paged, pages, ragged, row_body, schedule
from vinejax.engine.tpu.paged import PagedCache, PagedStorage, held_pages, min_pages
from vinejax.engine.tpu.pages import Pages, give_back, take_pages
from vinejax.engine.tpu.schedule import BLOCK
from vinejax.model.sharding import mesh_over

SLOTS, BLOCKS = 6, 3


class Oracle:
    """The pages of every slot as lists, with a literal implementation of the rule."""

    def __init__(self, num_pages: int):
        self.held: list[list[int]] = [[] for _ in range(SLOTS)]
        self.num_free = num_pages

    def needs(self, age: np.ndarray, slots: list[int]) -> int:
        return sum(age[slot] % BLOCK == 0 for slot in slots)

    def waiting(self, occupied: np.ndarray, age: np.ndarray) -> list[int]:
        going = sorted(np.flatnonzero(occupied).tolist(), key=lambda slot: age[slot])
        free, waiting = self.num_free, []
        while self.needs(age, going) > free:
            waiting.append(going.pop(0))
            free += -(-int(age[waiting[-1]]) // BLOCK)
        return waiting


@pytest.mark.first(2)
@pytest.mark.parametrize("num_pages", [BLOCKS, SLOTS * BLOCKS, 7])
def test_slots_take_and_return_pages_by_the_rule(num_pages: int):
    """In 2,000 steps with branches of random lengths no page is held twice, and none is lost."""
    rng = np.random.default_rng(num_pages)
    taking, giving = jax.jit(take_pages), jax.jit(give_back)
    oracle = Oracle(num_pages)
    numbers = jnp.arange(num_pages, dtype=jnp.int32)
    none = jnp.zeros((SLOTS, BLOCKS), jnp.int32)
    found = Pages(none, numbers, jnp.array([num_pages], jnp.int32))
    age, occupied = np.zeros(SLOTS, np.int32), np.ones(SLOTS, bool)
    budget = rng.integers(1, BLOCKS * BLOCK + 1, SLOTS)
    num_ended = num_restarted = 0
    for _ in range(2000):
        expected = oracle.waiting(occupied, age)
        found, waits = taking(found, jnp.array(occupied), jnp.array(age))
        assert np.flatnonzero(waits).tolist() == sorted(expected)
        num_restarted += sum(age[expected] > 0)
        age[expected] = 0
        busy = occupied & ~np.array(waits)
        assert busy.any() or not occupied.any(), "the branch with the most tokens goes on"
        age += busy
        num_held = np.where(occupied, -(-age // BLOCK), 0)
        oracle.num_free = int(found.num_free[0])
        of_slot = np.array(found.of_slot)
        held = [of_slot[slot, block] for slot in range(SLOTS) for block in range(num_held[slot])]
        free = np.array(found.free)[: oracle.num_free].tolist()
        assert sorted(held + free) == list(range(num_pages))
        ended = busy & (age == budget)
        found = giving(found, jnp.array(ended), jnp.array(age))
        oracle.num_free = int(found.num_free[0])
        num_ended += ended.sum()
        occupied &= ~ended
        if rng.random() < 0.1:  # idle slots take their next items
            budget = np.where(occupied, budget, rng.integers(1, BLOCKS * BLOCK + 1, SLOTS))
            age = np.where(occupied, age, 0)
            occupied = np.ones(SLOTS, bool)
    assert num_ended > 5
    assert (num_restarted > 0) == (num_pages < SLOTS * BLOCKS)


def test_branches_as_long_as_budgets_end_as_if_every_slot_had_all_columns():
    """The worst case: six slots with the pages of two. Two slots at a time end their budgets."""
    found = Pages(
        jnp.zeros((SLOTS, BLOCKS), jnp.int32),
        jnp.arange(2 * BLOCKS, dtype=jnp.int32),
        jnp.array([2 * BLOCKS], jnp.int32),
    )
    taking, giving = jax.jit(take_pages), jax.jit(give_back)
    age, occupied, num_ended = np.zeros(SLOTS, np.int32), np.ones(SLOTS, bool), 0
    for _ in range(6 * BLOCKS * BLOCK):
        found, waits = taking(found, jnp.array(occupied), jnp.array(age))
        age = np.where(waits, 0, age + 1).astype(np.int32)
        ended = age == BLOCKS * BLOCK
        found = giving(found, jnp.array(ended), jnp.array(age))
        num_ended += ended.sum()
        age[ended] = 0  # the next item
    assert num_ended >= 6 * 2


# --- through the engine ---

rng = np.random.default_rng(3)
SMALL = 32  # columns of a block in these tests
TRUNKS = [rng.integers(2, 20, n).tolist() for n in rng.integers(3, 20, 24)]  # 5 with branches
BRANCHES = [
    Branch(trunk, int(rng.integers(1, len(TRUNKS[trunk]) + 1)), seed << 40 | seed)
    for seed, trunk in enumerate(rng.integers(0, 5, 24).tolist())
]
BUDGETS = [1, 32, 33, *[72] * 21]  # one block of 32, two, three


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kernel_body, page_body, paged, pages, ragged, row_body, schedule):
        monkeypatch.setattr(module, "BLOCK", SMALL)


@pytest.fixture
def model(tiny: Model) -> Model:
    """A model that draws no EOS, so that most branches reach a third block."""
    tokenizer = copy.deepcopy(tiny.tokenizer)  # a copy would share its special tokens
    tokenizer.eos_token_id = None
    return random_model(tokenizer=tokenizer, context=128, **SAMPLED_MODELS["gqa"][0])


def grow(model: Model, num_pages: int | None) -> tuple[list[Grown], Engine]:
    """Samples with the kernel and memory for `num_pages` beside 4 rows; with None, by XLA."""
    by_kernel: dict[str, Any] = {}
    if num_pages is not None:
        mesh = mesh_over((1, 1, 1), jax.devices()[:1])
        taken = arrays.cache_bytes(model.decoder, mesh, (4 + num_pages) * SMALL)
        by_kernel = dict(attention="kernel", memory_gib=taken / 2**30)
    sampling = SampleConfig(stop=("12",))
    engine = Engine(
        model.decoder, sampling, model.tokenizer, slots=8, window_rows=4, chunk=5,
        **by_kernel,
    )  # fmt: skip
    stream = engine.stream(model.params, TRUNKS, BRANCHES, BUDGETS, scored=True)
    return stream.in_order(), engine


@pytest.mark.slow
def test_branches_that_wait_for_pages_have_the_same_tokens(model: Model, small_blocks: None):
    """With stop strings, accepted prefixes, waiting items, and lost tokens of several chunks.

    Trunks without branches enter rows after the others have ended.
    """
    expected, _ = grow(model, None)
    found, engine = grow(model, 14)
    assert_same(found, expected)
    stats = engine.stats
    assert stats.restarted_tokens > 0
    drawn = sum(len(one.tokens) for one in found)
    assert stats.decoded_tokens - stats.restarted_tokens + stats.repeated_tokens == drawn


@pytest.mark.slow
def test_a_pool_with_all_columns_restarts_nothing(model: Model, small_blocks: None):
    found, engine = grow(model, 24)
    assert_same(found, grow(model, None)[0])
    assert engine.stats.restarted_tokens == 0


@pytest.mark.slow
def test_pages_stay_where_they_are_in_a_drain(
    model: Model, small_blocks: None, monkeypatch: pytest.MonkeyPatch
):
    shapes = []

    def unmoved(arrays: drain.PhaseArrays) -> list[jax.Array]:
        return jax.tree.leaves((arrays.window, arrays.slots.cache.layers))

    def to_drain(*args: Any) -> Any:
        new, old_slots = drain.to_drain(*args)
        assert all(map(operator.is_, unmoved(args[-1]), unmoved(new)))
        assert isinstance(new.slots.cache, PagedCache)
        shapes.append((new.slots.item.shape, new.slots.cache.pages.of_slot.shape))
        return new, old_slots

    expected, _ = grow(model, None)
    monkeypatch.setattr(drain, "MIN_SLOTS", 8)
    monkeypatch.setattr(drain, "MIN_TOKENS", 0)
    monkeypatch.setattr("vinejax.engine.phase.to_drain", to_drain)
    found, engine = grow(model, 14)
    assert_same(found, expected)
    assert shapes == [((2,), (2, 3))] and engine.stats.restarted_tokens > 0


def pages_in(sizes: Sizes) -> int:
    assert isinstance(sizes.storage, PagedStorage)
    return sizes.storage.pages


def test_the_pool_takes_what_memory_is_left(tiny: Model):
    mesh = mesh_over((1, 1, 1), jax.devices()[:1])

    def bytes_of(columns: int) -> int:
        return arrays.cache_bytes(tiny.decoder, mesh, columns)

    def sizes(num_pages: int) -> tuple[Sizes, int]:
        memory = bytes_of(8 * 512 + num_pages * BLOCK)
        settings = arrays.EngineSettings(32, attention="kernel")
        demand = arrays.Workload(trunks=8, branches=900, longest=400, budget=1024)
        return arrays.sizes_of(tiny.decoder, mesh, "cpu", memory, settings, demand)

    cases = [(200, 32, 128), (128, 32, 128), (70, 32, 64), (55, 32, 51), (51, 32, 51)]
    for num_pages, slots, expected in cases:
        found, taken = sizes(num_pages)
        assert (found.slots, pages_in(found)) == (slots, expected), num_pages
        assert taken == arrays.phase_bytes(tiny.decoder, mesh, found)
    # Between the least and all pages, a pool has whole sixteenths of all pages.
    assert {pages_in(sizes(n)[0]) for n in (70, 71, 64)} == {64}
    assert min_pages(32, 1024) == 51, "1.58 pages a slot for a mean of 256 tokens"
    assert held_pages(1e6, 1024) == 4 and held_pages(1.0, 1024) == 1
    assert min_pages(1, 1024) == 4 and min_pages(8, 256) == 8
    with pytest.raises(RoomError, match="one slot of 1024"):
        sizes(-14)


@pytest.mark.parametrize("attention", ["xla", "kernel"])
def test_what_holds_a_row_and_a_slot_has_one_of_each(tiny: Model, attention: str):
    """To the byte, and also where the two do not take half of the memory each."""
    mesh = mesh_over((1, 1, 1), jax.devices()[:1])

    def least(columns: int, width: int, more: int) -> Sizes:
        memory = arrays.cache_bytes(tiny.decoder, mesh, columns + width) + more
        settings = arrays.EngineSettings(3, attention=attention)
        demand = arrays.Workload(trunks=8, branches=900, longest=columns, budget=width)
        sizes, taken = arrays.sizes_of(tiny.decoder, mesh, "cpu", memory, settings, demand)
        assert taken <= memory
        return sizes

    for columns, width in [(256, 1024), (1024, 256), (256, 2048)]:
        for more in range(0, arrays.cache_bytes(tiny.decoder, mesh, 2048), 1111):
            sizes = least(columns, width, more)
            assert sizes.slots >= 1 <= sizes.rows
            assert attention == "xla" or pages_in(sizes) >= width // BLOCK


@pytest.mark.slow  # test_feed_queue.py has streams without pages
def test_a_stream_that_is_fed_takes_pages(tiny: Model, monkeypatch: pytest.MonkeyPatch):
    for module in (kernel_body, page_body, paged, pages, ragged, row_body, schedule):
        monkeypatch.setattr(module, "BLOCK", 8)
    mesh = mesh_over((1, 1, 1), jax.devices()[:1])
    memory = arrays.cache_bytes(tiny.decoder, mesh, 4 * 48 + 12 * 8) / 2**30
    sampling = SampleConfig(temperature=0.9)
    kinds: list[dict[str, Any]] = [{}, {"memory_gib": memory, "attention": "kernel"}]
    by_xla, by_kernel = (
        Engine(tiny.decoder, sampling, tiny.tokenizer, slots=8, window_rows=4, chunk=3, **settings)
        for settings in kinds
    )
    expected = fed_cases.two_calls(by_xla, tiny.params)
    fed_cases.assert_same(fed_cases.as_fed(by_kernel, tiny.params), expected)


@pytest.mark.slow
def test_a_branch_that_restarts_keeps_the_tokens_with_which_a_watcher_ended_it(
    model: Model, monkeypatch: pytest.MonkeyPatch
):
    """Eight branches begin their third block in one step, for which two pages are free."""
    for module in (kernel_body, page_body, paged, pages, ragged, row_body, schedule):
        monkeypatch.setattr(module, "BLOCK", 8)
    mesh = mesh_over((1, 1, 1), jax.devices()[:1])
    memory = arrays.cache_bytes(model.decoder, mesh, 48 + 19 * 8) / 2**30
    engine = Engine(
        model.decoder, SampleConfig(), model.tokenizer, slots=8, window_rows=1, chunk=3,
        attention="kernel", memory_gib=memory,
    )  # fmt: skip
    seen: dict[int, list[int]] = {}

    def watch(running: Any) -> list[int]:
        new = {i: x.tolist() for i, x in running if len(x) > 13 and i not in seen}
        seen.update(new)  # the devices already compute the next chunk
        return [*new]

    trunk, branches = [5, 9, 7], [Branch(0, 3, seed) for seed in range(8)]
    feed = Feeder(lambda: None, branches=1, longest=40, at_once=8, budget=40, watch=watch)
    found = dict(engine.stream(model.params, [trunk], branches, 40, feed=feed))
    assert engine.stats.restarted_tokens > 0 and seen.keys() == found.keys()
    assert {i: x.tokens[: len(seen[i])] for i, x in found.items()} == seen
