"""What PPO, RestEM and DPO-Positive need beyond the loop, and what a run has used."""

import dataclasses
import functools
import itertools
import math
from typing import Any
from unittest.mock import MagicMock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers import rl_oracles as oracle

from vinejax.config.load import from_dict
from vinejax.core.settings import Config, MeshConfig
from vinejax.core.types import Episode, Problem, RunState, TrainState
from vinejax.learner.batch import collate_groups, epochs_of
from vinejax.learner.likelihood import Likelihood
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.packing import Passes
from vinejax.learner.score import score, scores_of
from vinejax.learner.update import gradients, num_accepted, update_step
from vinejax.methods import dpo_positive, pairs, restem
from vinejax.methods.known import METHODS
from vinejax.methods.ppo import CriticObjective, Targets, critic_metrics, critic_values
from vinejax.methods.settings import DPOConfig
from vinejax.model.sharding import make_mesh
from vinejax.rl.advantages import group_advantages
from vinejax.rl.losses import dpo_positive as dpo_loss
from vinejax.rl.losses import reinforce
from vinejax.rollout.draw import chunks, draw
from vinejax.runtime.compiles import num_compiles
from vinejax.session.budget import RunTotals, groups_left, num_updates
from vinejax.session.iteration import Iteration

SGD = optax.sgd(0.05)


def state_of(params: Any) -> TrainState:
    return TrainState(jnp.int32(0), params, SGD.init(params))


# --- losses against loops


def test_dpo_positive_equals_the_loop():
    rng = np.random.default_rng(0)
    w, worse, w_ref, worse_ref = rng.normal(-20, 2, (4, 50))
    expected = []
    for a, b, c, d in zip(w, worse, w_ref, worse_ref, strict=True):
        z = (a - b) - (c - d) - 5 * max(0.0, c - a)
        expected.append(math.log1p(math.exp(-0.1 * z)))
    assert (w < w_ref).any() and (w > w_ref).any()
    np.testing.assert_allclose(dpo_loss(w, worse, w_ref, worse_ref, 0.1, 5.0), expected, rtol=1e-4)


def test_reinforce_equals_the_loop():
    logprobs, advantages = np.random.default_rng(0).normal(-1, 0.5, (2, 4, 6))
    np.testing.assert_allclose(reinforce(logprobs, advantages), -advantages * logprobs, rtol=1e-6)


def test_group_means_and_sample_deviations():
    rewards, groups = np.array([1.0, 0.0, 0.5, 3.0, 3.0]), np.array([7, 7, 7, 2, 2])
    found = group_advantages(rewards, groups, "mean")
    np.testing.assert_allclose(found, [0.5, -0.5, 0, 0, 0], atol=1e-7)
    found = group_advantages(rewards, groups, "grpo", ddof=1, eps=1e-4)
    np.testing.assert_allclose(found, np.array([0.5, -0.5, 0, 0, 0]) / 0.5001, atol=1e-6)


# --- the critic


@pytest.mark.slow
def test_the_critic_learns_the_returns():
    cfg = methods.config("ppo")
    batch, credit = methods.batch(), methods.credit(cfg, methods.values())
    model, state = cases.model(), state_of(methods.critic_params())
    old = critic_values(model, state.params, batch, Passes(4))
    assert credit.returns is not None
    mask = np.asarray(batch.mask)
    assert not np.asarray(old)[~mask].any()
    objective = CriticObjective(model=model, microbatch=4, clip=10.0)
    rows, errors = (batch, Targets(old, credit.returns)), []
    for _ in range(6):
        before = critic_values(model, state.params, batch, Passes(4))
        state, update = update_step(objective, SGD, state, rows)
        found = critic_metrics(jax.device_get([update]))
        returns = np.asarray(credit.returns)
        error = ((np.asarray(before) - returns) ** 2)[mask].mean()
        loss = oracle.value_clip(np.asarray(before), np.asarray(old), returns, 10.0)[mask].mean()
        np.testing.assert_allclose([found["critic/error"], found["critic/loss"]], [error, loss],
                                   rtol=1e-4)  # fmt: skip
        errors.append(error)
    assert errors[-1] < 0.8 * errors[0] and state.step == 6


# --- RestEM


def solution(problem: str, reward: float, response: list[int] | None = None) -> Episode:
    return cases.episode([0, 5], response or [7, 8, 1], problem_id=problem, reward=reward)


def test_the_first_correct_solutions_are_kept():
    rewards = [("a", 1.0), ("b", 0.99), ("a", 0.0), ("a", 1.0), ("b", 1.0), ("a", 1.0)]
    episodes = [solution(*pair) for pair in rewards]
    kept = restem.keep_correct(episodes, per_problem=2)
    assert [id(e) for e in kept] == [id(episodes[i]) for i in (0, 3, 4)]
    assert len(restem.keep_correct(episodes * 20, 10)) == 20
    assert not restem.keep_correct([cases.episode([0], [], reward=1.0)], 10)


def climbing(accuracies: list[float], epochs: int = 3) -> tuple[TrainState, int, int]:
    """(the state that RestEM ends with, updates made, looks) when validation says these."""
    model, examples = cases.model(), [solution(f"p{i}", 1.0) for i in range(8)]
    cfg = methods.config("restem", restem={"eval_every": 2})
    batches = epochs_of(examples, epochs, size=4, seed=0, iteration=0)
    said = iter(accuracies)
    climb = restem.climb(
        model, SGD, state_of(cases.params()), batches, cfg, lambda params: next(said)
    )
    seen = climb.accuracies
    assert seen == accuracies[: len(seen)]
    assert all(np.isfinite(update.sums) and update.accepted for update in climb.updates)
    return climb.best, len(climb.updates), len(seen)


def test_a_climb_ends_where_validation_is_no_better():
    start = cases.params()
    state, updates, looks = climbing([0.5, 0.6, 0.7, 0.8])  # six updates, a look every two
    assert (updates, looks, state.step) == (6, 4, 6)
    state, updates, looks = climbing([0.5, 0.6, 0.6, 0.9])
    assert (updates, looks, state.step) == (4, 3, 2)  # the state of the second look
    state, updates, looks = climbing([0.5, 0.5])
    assert (updates, looks, state.step) == (2, 2, 0)
    cases.assert_equal(state.params, start)


def mocked_iteration(cfg: Config, episodes: list[Episode]) -> MagicMock:
    """An iteration that samples these episodes, and can be trained on."""
    parts = {"cfg": cfg, "session": MagicMock(), "log": MagicMock(), "spent": RunTotals()}
    iteration = MagicMock(spec=Iteration, number=0, metrics={}, **parts)
    iteration.sample_train.return_value = episodes
    iteration.train = functools.partial(Iteration.train, iteration)
    session = iteration.session
    session.model, session.base = cases.model(), None
    session.mesh = make_mesh(MeshConfig(fsdp=1))
    session.fresh_params.return_value = session.load_reference.return_value = cases.params()
    return iteration


@pytest.mark.slow
@pytest.mark.parametrize("name", ["restem", "dpo_positive"])
def test_other_numbers_and_lengths_of_solutions_compile_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    """Rows of another length, and the optimizer for any number of updates, change no result."""
    accuracies = itertools.count()
    monkeypatch.setattr(restem, "solve", MagicMock())
    monkeypatch.setattr(restem, "pass_at_1", lambda _: next(accuracies))
    small = {"restem": {"epochs": 1}, "dpo": {"epochs": 1}, "sample": {"max_tokens": 40}}
    cfg = methods.config(name, optimizer={"eps": 0.01}, **small)

    def moved(problems: int, length: int) -> Any:
        """By how much training on solutions of so many problems changes each parameter."""
        rows = cases.random_episodes([(4, length - 4)] * 2 * problems)
        episodes = [
            dataclasses.replace(row, problem_id=f"p{i // 2}", reward=float(i % 2))
            for i, row in enumerate(rows)
        ]
        iteration = mocked_iteration(cfg, episodes)
        end = METHODS[name].iteration(METHODS[name], iteration, RunState(state_of(cases.params())))
        assert iteration.spent.updates == end.policy.step == math.ceil(problems / 8)
        return jax.tree.map(lambda x, y: np.asarray(x) - y, end.policy.params, cases.params())

    moved(4, 40)
    compiled = num_compiles()
    moved(9, 55)
    found = moved(20, 46)
    assert num_compiles() == compiled

    module, longest = (restem, "packed_length") if name == "restem" else (pairs, "pair_row_length")
    monkeypatch.setattr(module, longest, lambda *_: 0)
    monkeypatch.setattr(module, "lasting_optimizer", lambda cfg: make_optimizer(cfg, 3))
    cases.assert_close(found, moved(20, 46), 1e-3)
    assert num_compiles() > compiled


def test_skipped_updates_of_restem_are_noted(monkeypatch: pytest.MonkeyPatch):
    """All updates from a start that is not finite are skipped; training/health.py must know."""
    monkeypatch.setattr(restem, "solve", lambda *_: MagicMock(rewards=np.ones((1, 1))))
    monkeypatch.setattr(restem, "lasting_optimizer", lambda *_: SGD)
    cfg = methods.config("restem", restem={"eval_every": 2}, ppo={"minibatch": 4})
    iteration = mocked_iteration(cfg, [solution(f"p{i}", 1.0) for i in range(8)])
    iteration.session.fresh_params.return_value = jax.tree.map(
        lambda x: np.full_like(x, np.nan), cases.params()
    )
    start = RunState(state_of(cases.params()))
    end = restem.restem(restem.METHOD, iteration, start)
    updates, rows = iteration.note_updates.call_args.args
    assert len(updates) == 2 and num_accepted(updates) == 0
    assert iteration.metrics["actor/skipped_updates"] == 2
    assert len(jax.tree.leaves(rows)[0]) == 4
    assert end.policy.step == 0


def test_restem_weighs_solutions_alike():
    """Mean over sequences of the mean over tokens, of temperature-scaled log-probabilities."""
    batch, model = methods.batch(), cases.model()
    logprobs = np.asarray(score(model, cases.params(), batch, 0.8))
    mask = np.asarray(batch.mask)
    rows = [logprobs[b][mask[b]].mean() for b in range(8)]
    objective = Likelihood(model=model, microbatch=2, reduction="sequence", temperature=0.8)
    _, loss = gradients(objective, cases.params(), batch)
    np.testing.assert_allclose(loss, -np.mean(rows), rtol=1e-5)
    assert abs(np.mean(rows) - logprobs[mask].mean()) > 1e-3


# --- DPO-Positive


def test_pairs_are_right_with_wrong_of_one_problem():
    episodes = [solution(p, r, [3 + i, 1]) for i, (p, r) in enumerate(
        [("a", 1.0), ("a", 0.0), ("a", 0.9), ("a", 1.5), ("b", 1.0), ("b", 1.0), ("c", 0.0)]
    )]  # fmt: skip
    made = pairs.make_pairs(episodes, DPOConfig(), seed=0)
    places = {(episodes.index(w), episodes.index(x)) for w, x in made}
    assert places == {(0, 1), (0, 2), (3, 1), (3, 2)} and len(made) == 4
    two = DPOConfig(pairs=2)
    some = [pairs.make_pairs(episodes, two, seed) for seed in range(8)]
    assert {len(x) for x in some} == {2}
    drawn = {(episodes.index(w), episodes.index(x)) for few in some for w, x in few}
    assert drawn == places
    assert pairs.make_pairs(episodes, two, 3) == pairs.make_pairs(episodes, two, 3)


@pytest.mark.slow
def test_dpo_learns_to_order_its_pairs():
    episodes = [solution("a", float(i % 2), [3 + i, 4, 1][: 2 + i % 2]) for i in range(6)]
    made = pairs.make_pairs(episodes, DPOConfig(), seed=0)
    model, cfg = cases.model(), methods.config("dpo_positive", dpo={"beta": 0.3})
    reference = cases.params()
    batch = collate_groups(made, rows=12, longest=20)
    assert batch.tokens.shape == (12, 32)
    batch = batch._replace(ref_logprobs=scores_of(model, reference, batch, 0.8, Passes(4)))
    state, metrics = state_of(cases.params()), []
    own = DPOConfig.of(cfg)
    objective = pairs.PairObjective(
        model=model, microbatch=4, temperature=0.8, loss=dpo_positive.loss, own=own
    )
    for _ in range(8):
        state, update = update_step(objective, SGD, state, batch)
        assert update.sums.pairs == 9
        metrics.append(pairs.pair_metrics(jax.device_get([update])))
    first, last = metrics[0], metrics[-1]
    np.testing.assert_allclose(first["dpo/loss"], math.log(2), rtol=1e-5)  # the start is its own
    assert abs(first["dpo/margin"]) < 1e-5 and last["dpo/loss"] < first["dpo/loss"] - 0.01
    assert last["dpo/ordered"] > 0.9


# --- problems


PROBLEMS = [(Problem(f"p{i}", "", ""), [0]) for i in range(10)]


def test_drawing():
    drawn = draw(PROBLEMS, 4, seed=0, iteration=1)
    assert len({p.id for p, _ in drawn}) == 4 and drawn == draw(PROBLEMS, 4, 0, 1)
    assert drawn == draw(PROBLEMS, None, 0, 1)[:4] and drawn != draw(PROBLEMS, 4, 0, 2)
    assert sorted(p.id for p, _ in draw(PROBLEMS, None, 0, 1)) == [p.id for p, _ in PROBLEMS]
    weights = np.where(np.arange(len(PROBLEMS)) == 7, 1e9, 1.0)
    assert draw(PROBLEMS, 1, 0, 1, weights) == PROBLEMS[7:8]
    assert [len(x) for x in chunks(PROBLEMS, 4)] == [4, 4, 2]


# --- what a run has used


def budgeted(**budget: int) -> Config:
    return from_dict({"budget": budget, "rollout": {"prompts": 4, "per_prompt": 8}})


def test_budgets_are_never_passed():
    assert groups_left(budgeted(), RunTotals(10**9, 10**9, 0, 10**9)) > 10**15
    assert groups_left(budgeted(episodes=50), RunTotals(episodes=32)) == 2  # whole groups of 8
    assert groups_left(budgeted(episodes=50), RunTotals(episodes=48)) == 0


def test_the_learning_rate_decays_over_what_a_run_will_do():
    cfg = dataclasses.replace(budgeted(), iterations=100)
    a_step = 2 * 1  # two epochs of one minibatch
    assert num_updates(cfg) == 100 * a_step
    for episodes, iterations in ((80, 3), (64, 2)):
        bounded = dataclasses.replace(budgeted(episodes=episodes), iterations=100)
        assert num_updates(bounded) == iterations * a_step


def test_totals_add_up():
    spent = RunTotals().plus(prompts=4, episodes=32, tokens=100).plus(updates=2, tokens=1)
    spent = spent.timed({"timing_s/rollout": 1.5}).timed(
        {"timing_s/rollout": 1.0, "timing_s/train": 2.0}
    )
    assert spent.metrics() == {
        "total/prompts": 4, "total/episodes": 32, "total/tokens": 101, "total/updates": 2,
        "timing_s/total_rollout": 2.5, "timing_s/total_train": 2.0,
    }  # fmt: skip
    assert RunTotals(**dataclasses.asdict(spent)) == spent
