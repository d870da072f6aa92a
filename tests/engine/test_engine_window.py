"""Trunks that pass through a small window, memory, and the engine's statistics."""

import dataclasses
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import model_oracles as oracle
from helpers.model_oracles import Model, assert_same, random_model

from vinejax.core.settings import SampleConfig
from vinejax.core.shapes import bucket
from vinejax.core.types import Batch
from vinejax.engine import finish, window
from vinejax.engine.branches import Branch, Grown, branch_set_of
from vinejax.engine.engine import Engine
from vinejax.engine.memory import cache_bytes
from vinejax.engine.stats import EngineStats
from vinejax.engine.unpadded_prefill import CompactPlaces, place_counts
from vinejax.learner.score import score
from vinejax.model.sharding import mesh_over

rng = np.random.default_rng(0)
TRUNKS = [rng.integers(2, 20, n).tolist() for n in rng.integers(3, 40, 25)]
BRANCHES = [
    Branch(trunk, int(rng.integers(1, len(TRUNKS[trunk]) + 1)), seed)
    for seed, trunk in enumerate(rng.integers(0, 25, 150).tolist())
]
BUDGETS = rng.integers(1, 17, 150).tolist()


def engine_of(model: Model, **settings) -> Engine:
    """An engine without acceptance by default, which would be one more program for each size."""
    settings = {"sample_config": SampleConfig(), "slots": 4, "skip_repeats": False} | settings
    return Engine(model.decoder, tokenizer=model.tokenizer, **settings)


@pytest.fixture(scope="module")
def whole(tiny: Model) -> list[Grown]:
    """The continuations with all trunks resident."""
    engine = engine_of(tiny, window_rows=32, slots=8, skip_repeats=True)
    return engine.grow(tiny.params, TRUNKS, BRANCHES, BUDGETS)


# --- a window smaller than the trunks ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "at_once"),
    [
        (dict(window_rows=1, chunk=2), 1),
        (dict(window_rows=3, slots=6, chunk=5), 3),
        (dict(window_rows=8, slots=16), 8),
    ],
    ids=str,
)
def test_trunks_pass_through_a_window(settings, at_once, whole, tiny):
    engine = engine_of(tiny, skip_repeats=True, **settings)
    assert_same(engine.grow(tiny.params, TRUNKS, BRANCHES, BUDGETS), whole)
    used = {branch.trunk for branch in BRANCHES}
    assert at_once < len(used)
    assert engine.stats.prefill_tokens == sum(len(TRUNKS[t]) for t in used), "each trunk once"


@pytest.mark.slow
def test_memory_is_kept_to(whole, tiny):
    """With ever less memory: fewer rows, then fewer slots, the same tokens; then an error."""
    mesh = mesh_over((1, 1, 1), jax.devices()[:1])
    row, slot = cache_bytes(tiny.decoder, mesh, 48), cache_bytes(tiny.decoder, mesh, 16)
    taken = []
    for room in (100 * row, 9 * row + 8 * slot, 2 * row + 2 * slot, row + slot):
        engine = engine_of(tiny, slots=8, memory_gib=room / 2**30)
        assert_same(engine.grow(tiny.params, TRUNKS, BRANCHES, BUDGETS), whole)
        assert engine.stats.cache_bytes <= room
        taken.append(engine.stats.cache_bytes)
    assert taken == sorted(taken, reverse=True) and taken[-1] == row + slot < taken[0]
    engine = engine_of(tiny, slots=8, memory_gib=(row + slot - 1) / 2**30)
    message = "does not hold one trunk of 48 tokens and one slot of 16"
    with pytest.raises(ValueError, match=message):
        engine.grow(tiny.params, TRUNKS, BRANCHES, BUDGETS)
    assert engine.stats.decode_steps == 0


@pytest.mark.slow
def test_more_continuations_take_no_more_memory(tiny):
    taken = []
    for k in (1, 2, 4):
        engine = engine_of(tiny, slots=8, window_rows=4)
        branches = [dataclasses.replace(b, seed=b.seed + 1000 * i) for b in BRANCHES
                    for i in range(k)]  # fmt: skip
        engine.grow(tiny.params, TRUNKS, branches, 4)
        taken.append(engine.stats.cache_bytes)
    assert len(set(taken)) == 1


@pytest.mark.slow
def test_large_prefills_are_full_while_trunks_wait(tiny: Model, monkeypatch: pytest.MonkeyPatch):
    """Their padding would cost as much as trunks. Only the last prefill may have room."""
    counts = []

    def noted(*args: Any, compact_places: Any) -> Any:
        counts.append(int((args[7] > 0).sum()))
        return window.prefill(*args, compact_places=compact_places)

    trunks = [TRUNKS[i % 25][:9] + [2 + i % 5] for i in range(100)]
    branches = [Branch(i, len(trunk), seed=i) for i, trunk in enumerate(trunks)]
    expected = engine_of(tiny, slots=8).grow(tiny.params, trunks, branches, BUDGETS[:100])
    monkeypatch.setattr("vinejax.engine.memory.prefill_batch", lambda *_, **__: 12)
    monkeypatch.setattr("vinejax.engine.phase.place_counts", lambda *_: [])
    monkeypatch.setattr("vinejax.engine.phase.prefill", noted)
    engine = engine_of(tiny, slots=16, window_rows=48)
    assert_same(engine.grow(tiny.params, trunks, branches, BUDGETS[:100]), expected)
    assert sum(counts) == 100 and set(counts[:-1]) == {12}


# --- slots are busy while there is work ---


@pytest.mark.slow
def test_no_slot_waits_while_branches_do(tiny):
    """No branch ends before its budget."""
    model = random_model(tokenizer=tiny.tokenizer, vocab_size=20, seed=5)
    engine = engine_of(model, slots=8, chunk=8)
    engine.eos_ids = ()
    lengths = np.minimum(np.random.default_rng(1).geometric(1 / 6, 40 * 12), 24).tolist()
    trunks = [[3, 5, 7] * 4 for _ in range(40)]
    branches = [Branch(i // 12, 1 + i % 12, seed=i) for i in range(len(lengths))]
    found = engine.grow(model.params, trunks, branches, lengths)
    assert [len(x.tokens) for x in found] == lengths
    assert engine.stats.queued_utilisation >= 0.99
    assert engine.stats.slot_utilisation >= 0.95
    assert engine.stats.useful_tokens == engine.stats.decoded_tokens == sum(lengths)


@pytest.mark.slow
def test_twenty_phases_compile_once_per_bucket(tiny):
    """Trunks, branches per trunk and budgets differ from phase to phase.

    Programs are compiled for buckets: that of the longest trunk, and the power of 2 below the
    number of branches per trunk.
    """
    jax.clear_caches()
    engine = engine_of(tiny, slots=16)
    engine.grow(tiny.params, [[4] * 90], [Branch(0, 90, 0)], 1)  # weights, and one bucket
    before = engine.stats.compiles
    draw = np.random.default_rng(3)
    phases, counts, buckets = [], set(), {}
    for seed in range(20):
        trunks = [draw.integers(2, 20, n).tolist() for n in draw.integers(10, 45, 16)]
        places = [
            (t, int(at))
            for t, trunk in enumerate(trunks)
            for at in draw.integers(1, len(trunk) + 1, 3 * draw.integers(2, 9))
        ]
        branches = [Branch(t, at, seed * 1000 + i) for i, (t, at) in enumerate(places)]
        phases.append((trunks, branches, draw.integers(9, 17, len(branches)).tolist()))
        longest = max(position for _, position in places)
        counts.add(len(branches))
        size = bucket(longest, least=32), (len(branches) // 16).bit_length()
        buckets[size] = phases[-1]
    assert len(counts) > 15 and 1 < len(buckets) <= 4
    for trunks, branches, budgets in phases:
        engine.grow(tiny.params, trunks, branches, budgets)
    # Per bucket: empty caches, decode, copy, and prefill and search, whose lengths vary.
    assert engine.stats.compiles - before <= 7 * len(buckets)
    compiled = engine.stats.compiles
    for trunks, branches, budgets in buckets.values():
        engine.grow(tiny.params, trunks, branches, budgets)
    assert engine.stats.compiles == compiled


# --- as branches end ---


def test_a_stream_gives_branches_as_they_end(whole, tiny):
    engine = engine_of(tiny, chunk=2)
    stream = engine.stream(tiny.params, TRUNKS, BRANCHES, [0, *BUDGETS[1:]])
    assert engine.stats == EngineStats(), "nothing is computed before the first pair is asked for"
    seen: dict[int, Grown] = {}
    steps = []
    for i, grown in stream:
        assert i not in seen
        seen[i] = grown
        steps.append(engine.stats.decode_steps)
    assert seen[0] == Grown([], [], "", "length") and next(iter(seen)) == 0
    assert_same([seen[i] for i in range(1, len(BRANCHES))], whole[1:])
    assert steps[1] < engine.stats.decode_steps / 4, "the devices go on while the caller has one"
    assert engine.stats.host_s > 0 and engine.stats.wait_s > 0 and engine.stats.prefill_s > 0
    assert engine.stats.useful_tokens == sum(len(grown.tokens) for grown in seen.values())


@pytest.mark.slow
def test_a_loop_that_is_left_early_leaves_nothing_behind(whole, tiny):
    engine = engine_of(tiny, chunk=2)
    engine.grow(tiny.params, TRUNKS, BRANCHES[:1], 1)  # weights and automaton stay
    arrays, threads = len(jax.live_arrays()), threading.active_count()
    stream = engine.stream(tiny.params, TRUNKS, BRANCHES, BUDGETS, scored=True)
    for _ in stream:
        assert len(jax.live_arrays()) > arrays
        break
    assert (len(jax.live_arrays()), threading.active_count()) == (arrays, threads)
    with pytest.raises(RuntimeError, match="the caller's"):
        for _ in engine.stream(tiny.params, TRUNKS, BRANCHES, BUDGETS):
            raise RuntimeError("the caller's")
    assert (len(jax.live_arrays()), threading.active_count()) == (arrays, threads)
    assert_same(engine.grow(tiny.params, TRUNKS, BRANCHES, BUDGETS), whole)
    assert_same(stream.in_order(), whole)
    assert [len(logprobs) for logprobs in stream.trunk_logprobs] == [len(x) for x in TRUNKS]


def test_of_several_hosts_each_gets_what_it_reads_first(whole, tiny, monkeypatch):
    """The first of two hosts reads the even branches; the other host sends its odd ones."""
    others = {
        i: [len(grown.tokens), grown.text, 0, False] for i, grown in enumerate(whole) if i % 2
    }
    monkeypatch.setattr(finish, "is_mine", lambda i: i % 2 == 0)
    monkeypatch.setattr(finish, "shared_work", lambda own: own | others)
    pairs = list(engine_of(tiny, chunk=2).stream(tiny.params, TRUNKS, BRANCHES, BUDGETS))
    numbers = [i for i, _ in pairs]
    assert sorted(numbers) == list(range(len(BRANCHES)))
    assert [i % 2 for i in numbers] == sorted(i % 2 for i in numbers)
    assert_same([grown for _, grown in sorted(pairs)], whole)


@pytest.mark.slow
def test_a_prefill_computes_less_padding(tiny, monkeypatch):
    """With 25 trunks in batches of 8, whose scores equal those of batches of one."""
    called = []

    def noted(*args: Any, compact_places: CompactPlaces | None) -> Any:
        called.append((args, compact_places))
        return window.prefill(*args, compact_places=compact_places)

    monkeypatch.setattr("vinejax.engine.phase.prefill", noted)
    scored = []
    for rows, batch in ((32, 8), (3, 1)):
        engine = engine_of(tiny, window_rows=rows, slots=8)
        stream = engine.stream(tiny.params, TRUNKS, BRANCHES, BUDGETS, scored=True)
        stream.in_order()
        scored.append(stream.trunk_logprobs)
        assert {args[6].shape[0] for args, _ in called} == {batch}
        tokens = [int(args[7].sum()) for args, _ in called]
        assert sum(tokens) == sum(map(len, TRUNKS))
        places = [x.source.shape[0] for _, x in called if x is not None]
        if batch == 8:
            assert all(0 < n <= size for n, size in zip(tokens, places, strict=True))
            assert sum(places) < 0.6 * 32 * 48, "of four batches with padding"
            assert not place_counts("tpu", batch, 48)
        else:
            assert not places
        called.clear()
    for joined, alone in zip(*scored, strict=True):
        np.testing.assert_allclose(joined, alone, atol=1e-5)


@pytest.mark.slow
def test_trunks_that_begin_alike_are_computed_together(tiny: Model, monkeypatch: Any):
    """16 solutions of two problems take two prefills, with the same scores and tokens."""
    rng, computed = np.random.default_rng(4), []
    prompts = [rng.integers(2, 20, 14).tolist() for _ in range(2)]
    trunks = [prompts[i % 2] + rng.integers(2, 20, 5 + i // 2).tolist() for i in range(16)]
    branches = [Branch(i, 14 + i % 5, i) for i in range(16)]

    def noted(*args: Any, compact_places: CompactPlaces | None) -> Any:
        computed.append(
            (int(args[7].sum()), 0 if compact_places is None else compact_places.source.shape[0])
        )
        return window.prefill(*args, compact_places=compact_places)

    monkeypatch.setattr("vinejax.engine.phase.prefill", noted)
    made = []
    for rows in (32, 3):
        engine = engine_of(tiny, window_rows=rows, slots=8, limits=(48, 48))
        stream = engine.stream(tiny.params, trunks, branches, 4, scored=True)
        made.append((stream.in_order(), stream.trunk_logprobs))
    shared = [(tokens, places) for tokens, places in computed if places]
    assert len(shared) == 2 and sum(tokens for tokens, _ in shared) == sum(map(len, trunks))
    assert all(places < 0.85 * tokens for tokens, places in shared)
    assert_same(made[0][0], made[1][0])
    for joined, alone in zip(made[0][1], made[1][1], strict=True):
        np.testing.assert_allclose(joined, alone, atol=1e-5)


@pytest.mark.slow
def test_a_row_has_one_lane_where_no_trunk_has_two_branches(tiny):
    ends = [Branch(n, len(trunk), n) for n, trunk in enumerate(TRUNKS)]
    engine = engine_of(tiny, slots=8, window_rows=4)
    for branches, lanes in ((ends, 1), (ends + ends[:1], 4)):
        branch_set = branch_set_of(TRUNKS, branches, 4, tiny.decoder.cfg, False)
        assert engine._assign(branch_set, 1 << 30)[1].lanes == lanes
    both = engine.grow(tiny.params, TRUNKS, ends + ends[:1], 4)
    assert_same(engine.grow(tiny.params, TRUNKS, ends, 4), both[:-1])


@pytest.mark.slow
def test_trunks_are_scored_by_their_prefill(tiny):
    """Also trunks without branches; scores equal the scorer's, at the sampling temperature."""
    sampling = SampleConfig(temperature=0.6, top_p=0.9)
    engine = engine_of(tiny, sample_config=sampling, window_rows=3)
    some = [branch for branch in BRANCHES if branch.trunk % 3]
    stream = engine.stream(tiny.params, TRUNKS, some, 4, scored=True)
    grown, logprobs = stream.in_order(), stream.trunk_logprobs
    assert engine.stats.prefill_tokens == sum(map(len, TRUNKS))
    assert_same(grown, engine.grow(tiny.params, TRUNKS, some, 4))
    tokens, mask = np.zeros((25, 48), np.int32), np.zeros((25, 48), bool)
    for row, trunk in enumerate(TRUNKS):
        tokens[row, : len(trunk)], mask[row, 1 : len(trunk)] = trunk, True
    zeros = jnp.zeros(tokens.shape)
    positions = jnp.broadcast_to(jnp.arange(48), tokens.shape)
    batch = Batch(jnp.asarray(tokens), jnp.ones(tokens.shape, jnp.int32), positions,
                  jnp.asarray(mask), zeros, zeros, zeros)  # fmt: skip
    scored = np.asarray(score(tiny.decoder, tiny.params, batch, 0.6))
    for row, (trunk, own) in enumerate(zip(TRUNKS, logprobs, strict=True)):
        np.testing.assert_allclose(own, scored[row, : len(trunk)], atol=1e-5)


def test_new_weights_are_used(tiny, whole):
    engine = engine_of(tiny, chunk=2)
    engine.grow(tiny.params, TRUNKS, BRANCHES, BUDGETS)
    other = random_model(tokenizer=tiny.tokenizer, vocab_size=20, seed=9)
    changed = engine.grow(other.params, TRUNKS, BRANCHES, BUDGETS)
    assert [x.tokens for x in changed] != [x.tokens for x in whole]
    engine.release()
    assert_same(engine.grow(tiny.params, TRUNKS, BRANCHES, BUDGETS), whole)


@pytest.mark.parametrize("numpy", [False, True])
def test_weights_that_changed_in_place_are_used(numpy, tiny):
    """A dict with another array, and a NumPy array with other numbers."""
    params = jax.tree.map(lambda x: np.array(x) if numpy else x, tiny.params)
    engine = engine_of(tiny)
    (first,) = engine.grow(params, TRUNKS, BRANCHES[:1], 1)
    if numpy:
        params["norm"]["scale"] *= 3
    else:
        params["norm"] = {"scale": 3 * params["norm"]["scale"]}
    (changed,) = engine.grow(params, TRUNKS, BRANCHES[:1], 1)
    assert_same([changed], engine_of(tiny).grow(params, TRUNKS, BRANCHES[:1], 1))
    assert abs(changed.logprobs[0] - first.logprobs[0]) > 0.01


# --- frequencies ---


@pytest.mark.first
@pytest.mark.parametrize(("top_p", "top_k"), [(0.9, 6), (1.0, 0), (0.8, 0), (1.0, 4)])
def test_first_tokens_have_the_exact_frequencies(top_p, top_k, tiny):
    """Chi-square of 4,000 branches at one state; 99.9% of 19 degrees of freedom is 43.8."""
    n, trunk = 4000, TRUNKS[0]
    sampling = SampleConfig(temperature=0.8, top_p=top_p, top_k=top_k)
    engine = engine_of(tiny, sample_config=sampling, slots=64)
    found = engine.grow(tiny.params, [trunk], [Branch(0, len(trunk), i) for i in range(n)], 1)
    logits = oracle.forward(tiny.decoder.cfg, tiny.params, trunk)[-1] / 0.8
    probs = np.exp(logits - logits.max())
    kept = oracle.kept_tokens(probs / probs.sum(), top_p, top_k)
    expected = n * kept / kept.sum()
    counts = np.bincount([x.tokens[0] for x in found], minlength=20)
    likely = expected > 0
    assert not counts[~likely].any()
    assert np.sum((counts - expected)[likely] ** 2 / expected[likely]) < 43.8
