"""Branches that begin on others under way draw what branches on whole sequences would."""

from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
from helpers import fed_cases
from helpers import offshoot_cases as cases
from helpers.model_oracles import Model

from vinejax.core.settings import SampleConfig
from vinejax.engine import memory
from vinejax.engine.branches import Fed, Feed, Grown, Offshoot
from vinejax.engine.engine import Engine
from vinejax.engine.offshoots import OffshootPhase
from vinejax.engine.tpu import kernel_body, page_body, paged, pages, ragged, row_body, schedule
from vinejax.model.sharding import mesh_over

SAMPLING = SampleConfig(temperature=0.9, top_p=0.95, stop=("1",))


def engine_of(tiny: Model, **settings: Any) -> Engine:
    settings = {"slots": 24, "chunk": 3} | settings
    return Engine(tiny.decoder, SAMPLING, tiny.tokenizer, **settings)


@pytest.fixture(scope="module")
def expected(tiny: Model) -> dict[int, Grown]:
    return cases.of_whole(engine_of(tiny), tiny.params)


def check(engine: Engine, tiny: Model, expected: dict[int, Grown], least: int) -> int:
    """Whether at least so many offshoots begin; returns how many solutions had others."""
    load_on, loads = OffshootPhase._load_on, []

    def counted(phase: OffshootPhase, parent: int, numbers: list[int]) -> None:
        loads.append(numbers)
        load_on(phase, parent, numbers)

    with mock.patch.object(OffshootPhase, "_load_on", counted):
        cases.assert_same(cases.drawn(engine, tiny.params), expected)
    assert engine.stats.offshoots >= least
    assert engine.stats.calls == 1
    return len(loads)


def test_tokens_are_those_of_whole_sequences(tiny: Model, expected: dict[int, Grown]):
    check(engine_of(tiny), tiny, expected, least=12)


@pytest.mark.parametrize(
    ("settings", "least"), [({}, 2), ({"skip_repeats": False, "window_rows": 5}, 0)]
)
def test_what_cannot_begin_waits_for_the_whole_sequence(
    tiny: Model, expected: dict[int, Grown], settings: dict[str, Any], least: int
):
    assert check(engine_of(tiny, slots=14, **settings), tiny, expected, least)


def test_pages_are_copied(tiny: Model, expected: dict[int, Grown], monkeypatch: pytest.MonkeyPatch):
    for module in (kernel_body, page_body, paged, pages, ragged, row_body, schedule):
        monkeypatch.setattr(module, "BLOCK", 8)
    engine = engine_of(tiny, attention="kernel")
    check(engine, tiny, expected, least=12)


def test_no_slot_waits_for_a_page(
    tiny: Model, expected: dict[int, Grown], monkeypatch: pytest.MonkeyPatch
):
    """Where memory is short there are fewer slots, and not fewer pages."""
    for module in (kernel_body, page_body, paged, pages, ragged, row_body, schedule):
        monkeypatch.setattr(module, "BLOCK", 8)
    mesh = mesh_over((1, 1, 1), jax.devices()[:1])
    few = memory.cache_bytes(tiny.decoder, mesh, 8 * 40 + 9 * 24) / 2**30
    engine = engine_of(tiny, attention="kernel", memory_gib=few)
    check(engine, tiny, expected, least=0)
    assert engine.stats.restarted_tokens == 0


@pytest.mark.parametrize(
    ("offshoot", "rule"),
    [
        (Offshoot(99, 0, 1, 4), "branch 99 after 0 tokens: they must be among those"),
        (Offshoot(0, 90, 1, 4), "branch 0 after 90 tokens: they must be among those"),
        (Offshoot(0, 1, 1, 99), "its budget, 90, must be 1 to 23"),
        (Offshoot(0, 1, 1, 0), "its budget, 0, must be 1"),
    ],
)
def test_offshoots_are_checked(tiny: Model, offshoot: Offshoot, rule: str):
    feed = Feed(lambda: Fed([], []), 1, 9, 40, offshoots=lambda drawn: [offshoot])
    given = fed_cases.PROMPTS, fed_cases.FIRST, fed_cases.MOST
    stream = engine_of(tiny).stream(tiny.params, *given, feed=feed)
    with pytest.raises(ValueError, match=rule):
        dict(stream)


def test_rows_must_have_room_for_what_is_before_an_offshoot(tiny: Model):
    def offshoots(drawn: dict[int, np.ndarray]) -> list[Offshoot]:
        return [Offshoot(i, 19, 1, 4) for i in (6, 7, 8) if len(drawn.get(i, ())) >= 19]

    feed = Feed(lambda: Fed([], []), 1, 9, longest=14, offshoots=offshoots)
    given = fed_cases.PROMPTS, fed_cases.FIRST, fed_cases.MOST
    with pytest.raises(ValueError, match="the feed's `longest` must be at least 33 tokens"):
        dict(engine_of(tiny).stream(tiny.params, *given, feed=feed))
