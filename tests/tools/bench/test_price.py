"""The price of a trained token is that of every method's update."""

import types
from typing import Any

import jax
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.applied import applied

from vinejax.core.settings import MeshConfig
from vinejax.core.types import TrainState
from vinejax.learner.update import update_step
from vinejax.model.sharding import make_mesh
from vinejax.tools.bench import price
from vinejax.tools.bench.estimators import FixedParts


@pytest.mark.parametrize("method", ["direct", "hapo", "vineppo"])
def test_rows_have_all_that_an_update_reads(method: str, monkeypatch: pytest.MonkeyPatch):
    """The updates are traced, and not compiled."""
    traced = []

    def trace(objective: Any, optimizer: Any, state: TrainState, *given: Any):
        traced.append(
            jax.eval_shape(lambda *x: update_step(objective, optimizer, *x), state, *given)
        )
        return state, None

    monkeypatch.setattr(price, "update_step", trace)
    cfg = applied(methods.config(method, ppo={"epochs": 1}, kl={"coef": 0.0}))
    solutions = [
        cases.episode(e.prompt, e.response, scored=[-1.0] * len(e.response))
        for e in methods.episodes()
    ]
    mesh = make_mesh(MeshConfig())
    session: Any = types.SimpleNamespace(model=cases.model(), base=None, mesh=mesh)
    session.weights = lambda trained: trained
    fixed = FixedParts(session, cases.params(), None, [])
    assert price.training_seconds(fixed, cfg, solutions) > 0
    assert len(traced) == price.TIMES + 1
