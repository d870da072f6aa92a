"""A stream with a feed draws the same tokens as separate calls."""

from typing import Any

import pytest
from helpers import fed_cases as cases
from helpers.model_oracles import Model

from vinejax.core.settings import SampleConfig
from vinejax.engine import phase
from vinejax.engine.branches import Branch, Feeder, StreamInput
from vinejax.engine.engine import Engine
from vinejax.engine.feed_queue import FeedQueue

SAMPLING = SampleConfig(temperature=0.9, top_p=0.95)


def engine_of(tiny: Model, sampling: SampleConfig = SAMPLING, **settings: Any) -> Engine:
    settings = {"slots": 8, "chunk": 3} | settings
    return Engine(tiny.decoder, sampling, tiny.tokenizer, **settings)


@pytest.fixture(scope="module")
def expected(tiny: Model) -> cases.Texts:
    return cases.two_calls(engine_of(tiny), tiny.params)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{}, {"skip_repeats": False}, {"skip_repeats": False, "window_rows": 2}],
    ids=["repeats", "decoded", "two rows"],
)
def test_tokens_are_those_of_two_calls(tiny: Model, expected: cases.Texts, settings: Any):
    engine = engine_of(tiny, **settings)
    cases.assert_same(cases.as_fed(engine, tiny.params), expected)
    assert engine.stats.calls == 1


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [{"longest": 20}, {"branches": 0}], ids=["columns", "queue"])
def test_what_does_not_fit_waits_for_a_following_phase(
    tiny: Model, expected: cases.Texts, bounds: dict[str, int], monkeypatch: pytest.MonkeyPatch
):
    held = []
    hold = FeedQueue.hold
    monkeypatch.setattr(FeedQueue, "hold", lambda self, more: held.append(more) or hold(self, more))
    if "branches" in bounds:
        monkeypatch.setattr("vinejax.engine.accept.ITEMS", 2)
        monkeypatch.setattr("vinejax.engine.memory.queue_size", lambda count: count // 2 * 2 + 10)
    engine = engine_of(tiny, skip_repeats="branches" in bounds)
    cases.assert_same(cases.as_fed(engine, tiny.params, **bounds), expected)
    assert held


@pytest.mark.slow  # test_stop.py has branches that go on, without a feed
def test_branches_that_were_cut_short_go_on_before_their_continuations(
    tiny: Model, monkeypatch: pytest.MonkeyPatch
):
    """Their texts lack the stop string that ended them, so they end in a further phase."""
    sampling = SampleConfig(temperature=0.9, stop=("1",))
    ids = tiny.tokenizer.encode("23", add_special_tokens=False)
    monkeypatch.setattr(
        "vinejax.engine.engine.token_text", lambda _: lambda i: "1" if i in ids else "x"
    )
    oracle = cases.two_calls(engine_of(tiny, sampling), tiny.params)
    engine = engine_of(tiny, sampling)
    resumed, resume = [], engine._resume

    def counted(*args: Any):
        resumed.append(args)
        return resume(*args)

    engine._resume = counted  # pyright: ignore
    cases.assert_same(cases.as_fed(engine, tiny.params), oracle)
    assert resumed


@pytest.mark.slow
def test_the_last_branches_drain_once_nothing_more_comes(
    tiny: Model, expected: cases.Texts, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vinejax.engine.drain.MIN_SLOTS", 4)
    monkeypatch.setattr("vinejax.engine.drain.MIN_TOKENS", 0)
    moved, to_drain = [], phase.to_drain

    def counted(*args: Any):
        moved.append(args)
        return to_drain(*args)

    monkeypatch.setattr(phase, "to_drain", counted)
    engine = engine_of(tiny, skip_repeats=False)
    cases.assert_same(cases.as_fed(engine, tiny.params), expected)
    assert len(moved) == 1


def test_a_feed_that_neither_gives_branches_nor_ends_raises(tiny: Model):
    feed = Feeder(lambda: StreamInput([], []), 1, 20, 1)
    with pytest.raises(ValueError, match="return None to end it"):
        dict(engine_of(tiny).stream(tiny.params, cases.PROMPTS, cases.FIRST, 4, feed=feed))


def test_what_is_fed_is_checked(tiny: Model):
    feed = Feeder(lambda: StreamInput([[3]], [Branch(0, 2, 1)]), 1, 20, 1)
    with pytest.raises(ValueError, match="branch 0: position 2"):
        dict(engine_of(tiny).stream(tiny.params, cases.PROMPTS, cases.FIRST, 4, feed=feed))


@pytest.mark.first
@pytest.mark.parametrize("skip_repeats", [True, False], ids=["repeats", "decoded"])
def test_a_watcher_sees_tokens_and_ends_branches(tiny: Model, skip_repeats: bool):
    """The others keep their tokens, and the slots of those that ended are free for waiting ones."""
    trunk = [*cases.PROMPTS[0], *cases.PROMPTS[1]]
    position = len(cases.PROMPTS[0])
    branches = [Branch(0, position, seed) for seed in range(12)]
    engine = engine_of(tiny, skip_repeats=skip_repeats)
    whole = engine.grow(tiny.params, [trunk], branches, 40)
    steps = engine.stats.decode_steps
    long = [i for i, grown in enumerate(whole) if len(grown.tokens) > 20]
    unwanted = set(long[1:])
    assert len(unwanted) >= 3
    seen: dict[int, list[int]] = {}

    def watch(running: Any) -> list[int]:
        over = []
        for i, tokens in running:
            assert tokens[: len(seen.get(i, []))].tolist() == seen.get(i, [])
            seen[i] = tokens.tolist()
            over += [i] if i in unwanted else []
        return over

    feed = Feeder(lambda: None, branches=1, longest=1, at_once=12, budget=40, watch=watch)
    stream = engine.stream(tiny.params, [trunk], branches, 40, feed=feed)
    for i, grown in stream:
        before = whole[i].tokens
        assert grown.tokens[: len(seen.get(i, []))] == seen.get(i, [])
        assert before[: len(grown.tokens)] == grown.tokens
        if i in unwanted:
            assert len(grown.tokens) < len(before) and grown.finish == "length"
        else:
            assert (grown.tokens, grown.finish) == (before, whole[i].finish)
    assert set(seen) >= set(long)
    assert engine.stats.decode_steps - steps < steps
