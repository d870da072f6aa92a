"""The drain of a phase has fewer slots and rows for the last branches, and the same tokens."""

import dataclasses
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
from helpers import gpu_kernel
from helpers.model_oracles import SAMPLED_MODELS, Model, assert_same, random_model

from vinejax.core.settings import SampleConfig
from vinejax.engine import drain, phase
from vinejax.engine import memory as arrays
from vinejax.engine.branches import Branch, Grown
from vinejax.engine.drain import drain_sizes
from vinejax.engine.engine import Engine
from vinejax.engine.layout import CacheLayout
from vinejax.engine.ring import Ring, RingLayout, RingStorage
from vinejax.model.decoder import Decoder
from vinejax.model.sharding import mesh_over

rng = np.random.default_rng(3)
TRUNKS = [rng.integers(2, 20, n).tolist() for n in rng.integers(3, 40, 7)]
BRANCHES = [
    Branch(trunk, int(rng.integers(1, len(TRUNKS[trunk]) + 1)), seed << 40 | seed)
    for seed, trunk in enumerate(rng.integers(0, 7, 40).tolist())
]
BUDGETS = [40] * 40  # large, so that sampling decides when a branch ends


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The results of `to_drain`; a phase of 8 slots has a drain of 2."""
    made = []

    def to_drain(*args: Any) -> Any:
        made.append(drain.to_drain(*args))
        return made[-1]

    monkeypatch.setattr(drain, "MIN_SLOTS", 8)
    monkeypatch.setattr(drain, "MIN_TOKENS", 0)
    monkeypatch.setattr(phase, "to_drain", to_drain)
    return made


def grow(model: Model, sampling: SampleConfig, **settings: Any) -> tuple[list[Grown], Engine]:
    settings = {"chunk": 3, "skip_repeats": False} | settings
    engine = Engine(model.decoder, sampling, model.tokenizer, **settings)
    return engine.grow(model.params, TRUNKS, BRANCHES, BUDGETS), engine


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gqa", "mha", "window"])
def test_a_drain_has_the_tokens_of_the_phase(name: str, tiny: Model, moves: list[Any]):
    fields, sampling = SAMPLED_MODELS[name]
    model = random_model(tokenizer=tiny.tokenizer, **fields)
    expected, _ = grow(model, sampling, slots=4)
    assert not moves, "few slots have no drain"
    found, engine = grow(model, sampling, slots=8, skip_repeats=True)
    assert_same(found, expected)
    (state, moved), *more = moves
    assert not more and moved.shape == (1, 2) and state.slots.item.shape == (2,)
    assert {x.shape[0] for x in jax.tree.leaves(state.window)} == {2}
    assert state.rows.next.shape == (2,)
    busy = sum(len(one.tokens) for one in found)
    assert engine.stats.decoded_tokens + engine.stats.repeated_tokens == busy
    # First steps of 8 slots, then steps of 2.
    assert 2 * engine.stats.decode_steps < engine.stats.slot_steps < 8 * engine.stats.decode_steps


@pytest.mark.slow
def test_a_drain_has_a_drain(tiny: Model, moves: list[Any], monkeypatch: pytest.MonkeyPatch):
    """16 slots become 4, then 1. With long chunks, too: these end early for a drain."""
    monkeypatch.setattr(drain, "MIN_DRAINED", 4)
    expected, _ = grow(tiny, SampleConfig(), slots=4)
    moves.clear()
    found, engine = grow(tiny, SampleConfig(), slots=16)
    assert_same(found, expected)
    assert [state.slots.item.shape[0] for state, _ in moves] == [4, 1]
    assert engine.stats.slot_steps < 16 * engine.stats.decode_steps
    moves.clear()
    found, _ = grow(tiny, SampleConfig(), slots=16, chunk=40)
    assert_same(found, expected)
    assert [state.slots.item.shape[0] for state, _ in moves] == [4, 1]


@pytest.mark.slow
def test_a_drain_with_stop_strings_and_fewer_rows_than_trunks(tiny: Model, moves: list[Any]):
    """The automaton's states move too, and a drain begins only when no trunk waits for a row."""
    sampling = SampleConfig(stop=("1",))
    expected, _ = grow(tiny, sampling, slots=4)
    found, _ = grow(tiny, sampling, slots=8, window_rows=3)
    assert_same(found, expected)
    assert len(moves) == 1 and "stop" in {one.finish for one in found}


@pytest.mark.slow
def test_a_window_of_few_rows_stays_where_it_is(tiny: Model, moves: list[Any]):
    expected, _ = grow(tiny, SampleConfig(), slots=4)
    with mock.patch.object(drain, "_rows_of", side_effect=AssertionError("rows were copied")):
        found, _ = grow(tiny, SampleConfig(), slots=8, window_rows=2)
    assert_same(found, expected)
    (state, _), *more = moves
    assert not more and state.slots.item.shape == (2,)


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_a_drain_by_the_kernel(
    platform: str, tiny: Model, moves: list[Any], monkeypatch: pytest.MonkeyPatch
):
    """The kernel is interpreted. On a TPU rows and pages are not moved (test_pages.py)."""
    if platform == "gpu":
        gpu_kernel.interpret(monkeypatch)
    expected, _ = grow(tiny, SampleConfig(), slots=4)
    found, _ = grow(tiny, SampleConfig(), slots=8, attention="kernel")
    assert_same(found, expected)
    assert len(moves) == 1


@pytest.mark.slow
def test_a_drain_in_another_layout(tiny: Model, moves: list[Any], monkeypatch: pytest.MonkeyPatch):
    """The drain's layout differs, as on a TPU, where 128 slots are innermost and 32 are not."""

    class Storage(RingStorage):
        def layout(self, slots: int) -> RingLayout:
            turned = RingLayout(CacheLayout("skbh"), CacheLayout("skbh"))
            return turned if slots == 2 else super().layout(slots)

    expected, _ = grow(tiny, SampleConfig(), slots=4)
    storage = Storage("cpu", shares_heads=True)
    monkeypatch.setattr(arrays, "storage_for", lambda *args: storage)
    found, _ = grow(tiny, SampleConfig(), slots=8)
    assert_same(found, expected)
    (state, _), *_ = moves
    ring = state.slots.cache
    assert isinstance(ring, Ring)
    assert ring.layers[0].keys[0].shape[2] == 2, "slots are the third axis"


def test_a_short_phase_compiles_no_drain(tiny: Model):
    """A few of its branches go on for long, in the programs of all slots."""
    branches = [Branch(0, len(TRUNKS[0]), seed) for seed in range(100)]
    budgets = [1 + 12 * (seed < 20) for seed in range(100)]
    engine = Engine(tiny.decoder, SampleConfig(), tiny.tokenizer, slots=128, skip_repeats=False)
    with mock.patch.object(phase, "to_drain", side_effect=AssertionError("a drain")):
        found = engine.grow(tiny.params, TRUNKS[:1], branches, budgets)
    assert max(len(one.tokens) for one in found) > 8, "a drain would have begun"
    assert engine.stats.slot_steps == 128 * engine.stats.decode_steps


def test_sizes(tiny: Model):
    mesh = mesh_over((1, 1, 1), jax.devices()[:1])
    settings = arrays.EngineSettings(slots=128)
    demand = arrays.Workload(trunks=50, branches=900, longest=40, budget=512)
    whole, taken = arrays.sizes_of(tiny.decoder, mesh, "cpu", 2**30, settings, demand)
    found, further = drain_sizes(tiny.decoder, mesh, 2**30, whole)
    assert found.lanes <= found.slots == 32 >= found.rows
    assert further.lanes <= further.slots == 8 >= further.rows
    same = ("columns", "width", "queue", "chunk", "storage")
    assert all(getattr(found, name) == getattr(whole, name) for name in same)
    assert found.rows < whole.rows
    both = taken + arrays.phase_bytes(tiny.decoder, mesh, found)
    assert drain_sizes(tiny.decoder, mesh, both, whole) == (found, further)
    assert drain_sizes(tiny.decoder, mesh, both - 1, whole) == (further,), "no memory for both"
    # A window of as few rows is not copied: only the ring of fewer slots comes on top.
    low = dataclasses.replace(whole, rows=4)
    ring = 32 * arrays.cache_bytes(tiny.decoder, mesh, low.width)
    enough = arrays.phase_bytes(tiny.decoder, mesh, low) + ring
    assert [found.rows for found in drain_sizes(tiny.decoder, mesh, enough, low)] == [4, 4]
    assert [found.slots for found in drain_sizes(tiny.decoder, mesh, enough - 1, low)] == [8]
    wide = dataclasses.replace(low, lanes=128, batch=8)
    drains = drain_sizes(tiny.decoder, mesh, 2**30, wide)
    assert [(found.lanes, found.batch) for found in drains] == [(32, 4), (8, 4)]
    for width, slots in [(255, [32]), (64, [32]), (63, [])]:
        short = dataclasses.replace(whole, width=width)
        assert [x.slots for x in drain_sizes(tiny.decoder, mesh, 2**30, short)] == slots, width
    few = dataclasses.replace(whole, slots=95)
    assert not drain_sizes(tiny.decoder, mesh, 2**30, few)
    # A CPU decodes a large model for long, and an accelerator does not.
    large = Decoder(dataclasses.replace(tiny.decoder.cfg, ffn=2**21))
    few = dataclasses.replace(few, width=24)
    assert [found.slots for found in drain_sizes(large, mesh, 2**30, few)] == [23]
    other = dataclasses.replace(few, storage=RingStorage("gpu", shares_heads=True))
    assert not drain_sizes(large, mesh, 2**30, other)
