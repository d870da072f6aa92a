"""Turns that reuse the keys of earlier turns draw the same tokens as on trunks computed whole."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import gpu_kernel
from helpers import kept_cases as cases
from helpers.model_oracles import SAMPLED_MODELS, Model, random_model

from vinejax.core.settings import SampleConfig
from vinejax.engine.branches import Branch, BranchSet
from vinejax.engine.engine import Engine
from vinejax.engine.keeping import KeepingPhase

TRUNKS = [prompt + cases.answer(prompt) * 3 for prompt in cases.PROMPTS]
KERNEL = {"attention": "kernel"}


def engine_of(tiny: Model, **settings: Any) -> Engine:
    sampling = SampleConfig(temperature=0.9, top_p=0.95)
    settings = {"slots": 8, "chunk": 3, "skip_repeats": False, **settings}
    return Engine(tiny.decoder, sampling, tiny.tokenizer, **settings)


@pytest.fixture(scope="module")
def of_solutions(tiny: Model) -> cases.Played:
    """Episodes on prompts, whose trunks are computed whole."""
    engine = engine_of(tiny)
    episodes = cases.played(engine, tiny.params, cases.PROMPTS, cases.solutions(), is_fed=False)
    assert max(map(len, episodes.tokens)) > 80
    assert engine.stats.prefill_tokens > 4 * sum(map(len, episodes.tokens))
    return episodes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "settings"),
    [("cpu", {}), ("cpu", {"window_rows": 3}), ("tpu", KERNEL), ("gpu", KERNEL)],
    ids=["rows for all", "three rows", "kernel for TPU", "kernel for GPU"],
)
def test_each_token_is_prefilled_once(
    tiny: Model,
    of_solutions: cases.Played,
    platform: str,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    if platform == "gpu":
        gpu_kernel.interpret(monkeypatch)
    engine = engine_of(tiny, **settings)
    found = cases.played(engine, tiny.params, cases.PROMPTS, cases.solutions())
    cases.assert_same(found, of_solutions)
    assert engine.stats.prefill_tokens < sum(map(len, found.tokens))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [None, 3], ids=["rows for all", "three rows"])
def test_continuations_reuse_the_keys_of_their_trunks(tiny: Model, rows: int | None):
    """Trunks that are scored and whose tokens branches may accept are computed whole, and once.

    In the first layer a query sees 6 positions.
    """
    model = random_model(tokenizer=tiny.tokenizer, **SAMPLED_MODELS["window"][0])
    starts, counts, made = cases.states(TRUNKS), [], []
    for is_fed in (False, True):
        engine = engine_of(model, window_rows=rows, skip_repeats=True)
        made.append(cases.played(engine, model.params, TRUNKS, starts, is_fed, scored=True))
        counts.append(engine.stats.prefill_tokens)
        assert engine.stats.repeated_tokens
    cases.assert_same(made[1], made[0])
    assert counts[1] < sum(map(len, made[1].tokens)) < counts[0] / 3


def test_a_trunk_whose_branches_have_no_budget_has_no_shard():
    """Nothing of such a trunk is computed, so the set has none of its tokens."""
    phase = KeepingPhase.__new__(KeepingPhase)
    phase._row_tokens = np.full((2, 3, 8), -1, np.int32)  # two shards with three rows
    phase._row_tokens[1, 2, :2] = 5, 6
    branches = [Branch(0, 4, seed=1), Branch(1, 3, seed=1)]
    more = BranchSet([[], [5, 6, 7]], branches, [0, 2], longest=3, scored=[False, False])
    assert phase._shard_of(more) == {1: 1}


@pytest.mark.parametrize("trunks", [1, 60], ids=["one request", "requests with one beginning"])
def test_a_common_beginning_leaves_no_shard_idle(trunks: int):
    """As in a server: the first request is decoded while the others, or its other samples, come."""
    phase: Any = KeepingPhase.__new__(KeepingPhase)
    phase._row_tokens = np.full((4, 3, 8), -1, np.int32)
    phase._row_tokens[0, 0, :4] = 5, 6, 7, 0
    phase._collector = SimpleNamespace(not_ended=np.array([1, 0, 0, 0]))
    phase._longest_budget, phase._num_items = 9, np.array([1, 0, 0, 0])
    phase._waiting_jobs, phase._sizes = [deque()] * 4, SimpleNamespace(rows=3)
    branches = [Branch(i % trunks, 4, seed=i) for i in range(60)]
    ids = [[5, 6, 7, i] for i in range(trunks)]
    more = BranchSet(ids, branches, [9] * 60, longest=4, scored=[False] * trunks)
    counts = [sum(len(job.items) for job in jobs) for jobs in phase._jobs_of(more)]
    assert sum(counts) == 60 and counts[0] == max(counts) <= 2 * min(counts) + 8
