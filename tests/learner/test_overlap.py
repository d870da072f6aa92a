"""While the devices compute an update, the host makes the next batch: no loop waits too early.

`update_step` is replaced by one that notes when an update is started, and whose results note when
they are waited for or read.
"""

import contextlib
import types
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import loop_cases as cases
from helpers.applied import policy_objective

from vinejax.core.settings import Config
from vinejax.core.types import Rollout, RunState, TrainState
from vinejax.credit.assign import Credit
from vinejax.learner import update as learner_update
from vinejax.learner.batch import collate, epochs_of, step_layout
from vinejax.learner.packing import passes_for
from vinejax.learner.policy import PolicyObjective, PolicySums, SumsByEighth
from vinejax.learner.score import scores_of
from vinejax.learner.update import Update
from vinejax.methods import pairs as of_pairs
from vinejax.methods import restem, stages
from vinejax.methods.known import find_method
from vinejax.methods.ppo import CriticObjective, CriticSums
from vinejax.runtime.log import RunLog
from vinejax.runtime.stopping import deferred
from vinejax.session.budget import RunTotals
from vinejax.session.iteration import Iteration
from vinejax.training import warmup

SGD = optax.sgd(0.1)


class Event(NamedTuple):
    kind: str  # 'start' or 'wait'
    loop: str  # class name of the update's objective
    number: int


class Late:
    """A number that a device has yet to compute."""

    def __init__(self, note: Any, value: float):
        self._note, self._value = note, value

    def block_until_ready(self) -> "Late":
        self._note()
        return self

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        self._note()
        return np.asarray(self._value, dtype)

    def __float__(self) -> float:
        self._note()
        return self._value

    def __bool__(self) -> bool:
        self._note()
        return bool(self._value)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Event]]:
    """The events in order, while the loops look for a request to stop."""
    found: list[Event] = []

    def update_step(objective: Any, optimizer: Any, state: TrainState, *_: Any):
        loop = type(objective).__name__
        number = sum(event[:2] == ("start", loop) for event in found)
        found.append(Event("start", loop, number))

        def late(value: float) -> Any:
            return Late(lambda: found.append(Event("wait", loop, number)), value)

        sums: Any = late(0.5)
        if isinstance(objective, PolicyObjective):
            by_eighth = SumsByEighth(*[jnp.ones(8) for _ in SumsByEighth._fields])
            names = set(PolicySums._fields) - {"by_eighth"}
            late_ones: dict[str, Any] = {name: late(1.0) for name in names}
            sums = PolicySums(**late_ones, by_eighth=by_eighth)
        if isinstance(objective, CriticObjective):
            sums = CriticSums(*[late(1.0) for _ in CriticSums._fields])
        return state, Update(sums, late(0.5), late(1.0))

    for module in (learner_update, restem, warmup):
        monkeypatch.setattr(module, "update_step", update_step)
    with deferred():
        yield found


def assert_no_early_wait(events: list[Event], loop: str, updates: int) -> None:
    """Update i + 1 is started before update i is waited for; the host is one update ahead."""
    own = [event for event in events if event.loop == loop]
    starts = {e.number: i for i, e in enumerate(own) if e.kind == "start"}
    assert len(starts) == updates > 2
    for i, event in enumerate(own):
        if event.kind == "wait" and event.number + 1 < updates:
            assert i > starts[event.number + 1], f"{loop}: {event} is too early"
    assert any(event.kind == "wait" for event in own), "nothing was waited for"


class QuietLog(RunLog):
    """Keeps (step, loss) of the records, and writes nothing."""

    def __init__(self):
        self.records: list[tuple[int, float]] = []

    def stage(self, name: str) -> Any:
        return contextlib.nullcontext()

    def progress(self, done: int, total: int) -> None: ...

    def metrics(self, iteration: int, step: int, stage: str, values: Any) -> None:
        self.records.append((step, float(values["sft/loss"])))


def fake_iteration(cfg: Config) -> Iteration:
    """An iteration of `cases.model()` with the attributes that loops over minibatches read."""
    iteration = Iteration.__new__(Iteration)
    iteration.log, iteration.number, iteration.spent = QuietLog(), 3, RunTotals()
    iteration.metrics = {}
    parts = {"model": cases.model(), "base": None, "mesh": None, "load_reference": cases.params}
    parts["cfg"] = cfg
    iteration.session = cast(Any, types.SimpleNamespace(**parts))
    return iteration


def state_of() -> TrainState:
    return TrainState(jnp.int32(7), {"x": jnp.zeros(2)}, ())


@pytest.mark.parametrize("method", ["vineppo", "ppo"])
def test_policy_and_critic(events: list[Event], method: str):
    cfg = cases.config(method=method, ppo={"epochs": 4})
    iteration, episodes = fake_iteration(cfg), cases.random_episodes([(4, 9), (2, 3)] * 8)
    batch = collate(episodes, rows=8)
    objective = policy_objective(cases.model(), cfg)
    values = np.zeros(batch.tokens.shape, np.float32) if method == "ppo" else None
    rollout = Rollout(episodes, batch, step_layout(batch, episodes), values)
    by_step = np.zeros(rollout.steps.rewards.shape)
    credit = Credit(batch.advantages, batch.mask, by_step, returns=values)
    state = RunState(state_of(), state_of() if method == "ppo" else None)
    state = find_method(method).state.learn(iteration, state, rollout, credit)
    stages.updated(iteration, state, rollout, credit, objective)
    assert_no_early_wait(events, "PolicyObjective", 4)
    if method == "ppo":
        assert_no_early_wait(events, "CriticObjective", 4)


def test_a_fixed_set_of_solutions(events: list[Event]):
    cfg = cases.config()
    batches = epochs_of(cases.random_episodes([(4, 9)] * 12), 2, 4, seed=0, iteration=0)
    objective = warmup.sft_objective(cases.model(), cfg)
    iteration = fake_iteration(cfg)
    _, updates = iteration.train(objective, SGD, state_of(), batches, 6)
    assert_no_early_wait(events, "Likelihood", 6)
    assert iteration.metrics == {"actor/skipped_updates": 0.0}
    assert [float(update.sums) for update in updates] == [0.5] * 6


def test_restem(events: list[Event]):
    cfg = cases.config(method="restem", restem={"eval_every": 9})
    batches = epochs_of(cases.random_episodes([(4, 9)] * 12), 2, 4, seed=0, iteration=0)
    said = iter([0.1, 0.2])
    state = state_of()
    climb = restem.climb(cases.model(), SGD, state, batches, cfg, lambda _: next(said))
    assert_no_early_wait(events, "Likelihood", 6)
    assert [float(update.sums) for update in climb.updates] == [0.5] * 6


def supervised(steps: int) -> tuple[list[tuple[int, float]], Any]:
    """(step and loss of each record, the trained parameters) of a warm-up."""
    cfg = cases.config(sft={"steps": steps, "batch": 4})
    log = QuietLog()
    examples = cases.random_episodes([(4, 9), (3, 20), (2, 3)] * 4)
    mesh = warmup.make_mesh(cfg.mesh)
    params = warmup.train_supervised(cases.model(), cases.params(), examples, cfg, mesh, log)
    return log.records, params


def test_the_warm_up(events: list[Event]):
    records, _ = supervised(45)
    assert_no_early_wait(events, "Likelihood", 45)
    assert [step for step, _ in records] == [20, 40, 45]


@pytest.mark.slow
def test_the_numbers_are_those_of_a_host_that_waits(monkeypatch: pytest.MonkeyPatch):
    records, params = supervised(41)

    def patient(*args: Any) -> tuple[TrainState, Update]:
        return jax.block_until_ready(learner_update.update_step(*args))

    monkeypatch.setattr(warmup, "update_step", patient)
    expected, expected_params = supervised(41)
    assert records == expected and [step for step, _ in records] == [20, 40, 41]
    cases.assert_equal(params, expected_params)


def test_reference_scores_of_pairs_are_those_of_each_minibatch():
    cfg = cases.config(method="dpo_positive", dpo={"epochs": 2})
    lengths = [(3, 1 + i % 5) for i in range(11)]
    chosen, rejected = cases.random_episodes(lengths), cases.random_episodes(lengths, seed=1)
    pairs = list(zip(chosen, rejected, strict=True))
    iteration = fake_iteration(cfg)
    reference = of_pairs._reference_scores(iteration, pairs)
    batches = list(of_pairs._pair_batches(iteration, pairs, reference, epochs=2))
    length = of_pairs.pair_row_length(iteration, pairs)
    assert len(batches) == 4 and length <= batches[0].tokens.shape[1]
    passes = passes_for(cfg, cfg.ppo.minibatch, None)._replace(shared=False)
    for batch in batches:
        expected = scores_of(cases.model(), cases.params(), batch, 0.8, passes)
        assert np.abs(expected).max() > 1.0
        np.testing.assert_allclose(batch.ref_logprobs, expected, atol=1e-5)


def test_an_optimizer_that_began_anew_goes_on_counting():
    """RestEM and DPO-Positive make a new one per iteration, while records count the run's steps."""
    before, after = state_of(), state_of()._replace(step=jnp.int32(4))
    found = learner_update.with_total_steps(before, after)
    assert found.step == 7 + 4 and found.params is after.params
