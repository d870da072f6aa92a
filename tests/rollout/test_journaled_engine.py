"""An engine with a journal: what a call gave is read by the next process, to the bit."""

import dataclasses
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from etils import epath
from helpers.model_oracles import Model

from vinejax.core.settings import SampleConfig
from vinejax.engine.branches import Branch
from vinejax.engine.engine import Engine
from vinejax.rollout.journaled import JournaledEngine
from vinejax.runtime.journal import Journal

TRUNKS = [[4, 5, 6], [7, 8]]
BRANCHES = [Branch(0, 3, 1), Branch(1, 2, 2, 1), Branch(0, 2, 3), Branch(1, 1, 4)]
BUDGETS = [5, 0, 1, 6]
SAMPLING = SampleConfig(temperature=0.9, stop=("7",))
COMPUTED = mock.Mock(side_effect=RuntimeError("a call is computed"))


def engine_of(tiny: Model, folder: Path, sampling: SampleConfig = SAMPLING) -> JournaledEngine:
    journal = Journal(epath.Path(folder))
    journal.open("0", "w")
    return JournaledEngine(journal, tiny.decoder, sampling, tiny.tokenizer, slots=4)


def call(engine: Engine, tiny: Model, **changes: Any) -> tuple[list[Any], list[np.ndarray]]:
    given = {"trunks": TRUNKS, "branches": BRANCHES, "max_tokens": BUDGETS, "scored": True}
    stream = engine.stream(tiny.params, **given | changes)
    return stream.in_order(), stream.trunk_logprobs


def computes(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by an item whenever an engine computes a call."""
    grow, calls = Engine._grow, []

    def counted(*args: Any):
        calls.append(args)
        return (yield from grow(*args))

    monkeypatch.setattr(Engine, "_grow", counted)
    return calls


def counts(engine: Engine) -> dict[str, float]:
    return dataclasses.asdict(engine.stats)


def test_a_finished_call_is_read(tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plain = Engine(tiny.decoder, SAMPLING, tiny.tokenizer, slots=4)
    expected, of_trunks = call(plain, tiny)
    first = engine_of(tiny, tmp_path)
    for engine in (first, first):  # two calls with the same work: two entries
        assert call(engine, tiny)[0] == expected
    second, calls = engine_of(tiny, tmp_path), computes(monkeypatch)
    for _ in range(2):
        grown, logprobs = call(second, tiny)
        assert grown == expected
        for found, wanted in zip(logprobs, of_trunks, strict=True):
            np.testing.assert_array_equal(found, wanted)
    assert not calls and counts(second) == counts(first)
    assert call(second, tiny)[0] == expected and len(calls) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"trunks": [[4, 5, 7], [7, 8]]},
        {"branches": [Branch(0, 3, 9), *BRANCHES[1:]]},
        {"branches": [Branch(0, 3, 1, 0), *BRANCHES[1:]]},
        {"max_tokens": [5, 0, 2, 6]},
        {"scored": False},
    ],
    ids=["trunk", "seed", "response", "budget", "scored"],
)
def test_another_call_is_computed(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
):
    call(engine_of(tiny, tmp_path), tiny)
    monkeypatch.setattr(Engine, "_grow", COMPUTED)
    call(engine_of(tiny, tmp_path), tiny)
    with pytest.raises(RuntimeError, match="a call is computed"):
        call(engine_of(tiny, tmp_path), tiny, **changes)


def test_another_temperature_is_computed(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    call(engine_of(tiny, tmp_path), tiny)
    monkeypatch.setattr(Engine, "_grow", COMPUTED)
    with pytest.raises(RuntimeError, match="a call is computed"):
        call(engine_of(tiny, tmp_path, dataclasses.replace(SAMPLING, temperature=0.8)), tiny)


def test_a_call_that_was_not_read_to_its_end_leaves_nothing(tiny: Model, tmp_path: Path):
    for _ in engine_of(tiny, tmp_path).stream(tiny.params, TRUNKS, BRANCHES, BUDGETS):
        break
    assert not list(tmp_path.rglob("*.npz"))
