"""The value tracker of single-stream policy optimization: draws, counts, drift and restarts."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.applied import assign_credit
from helpers.refusals import refuses

from vinejax.contrib.methods import single_stream
from vinejax.contrib.methods.single_stream import ValueTracker
from vinejax.core.errors import WorkdirError
from vinejax.core.settings import Config
from vinejax.core.types import Episode, Problem, PromptedProblem, Rollout, RunState, TrainState
from vinejax.engine.engine import Engine
from vinejax.learner.batch import collate, step_layout
from vinejax.learner.packing import Passes
from vinejax.learner.score import scores_of
from vinejax.rollout.draw import draw
from vinejax.rollout.sampler import Sampler
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.runtime.compiles import num_compiles
from vinejax.session.session import Session
from vinejax.tasks.graded import GradedTask

PROBLEMS: list[PromptedProblem] = [(Problem(f"p{i}", "", ""), [0, i + 3]) for i in range(6)]


def config(**sections: Any) -> Config:
    fields: dict[str, Any] = {
        "rollout": {"prompts": 3, "per_prompt": 1},
        "sample": {"max_tokens": 12, "temperature": 0.8},
        "ppo": {"minibatch": 4, "microbatch": None},
    }
    return methods.config("single_stream", **fields | sections)


def sampled(names: str, rewards: list[float], seed: int, params: Any) -> Rollout:
    """A rollout with a random response to each problem 'p<digit>', scored with `params`."""
    rng = np.random.default_rng(seed)
    episodes = []
    for digit, reward in zip(names, rewards, strict=True):
        problem, prompt = PROBLEMS[int(digit)]
        response = rng.integers(3, cases.VOCAB, rng.integers(2, 13)).tolist()
        episodes.append(cases.episode(prompt, response, problem_id=problem.id, reward=reward))
    batch = collate(episodes, rows=4)
    old = scores_of(cases.model(), params, batch, 0.8, Passes(4))
    batch = batch._replace(old_logprobs=old)
    return Rollout(episodes, batch, step_layout(batch, episodes))


def count(tracker: ValueTracker, rollout: Rollout, params: Any) -> tuple[ValueTracker, dict]:
    model = cases.model()
    return single_stream.count_rollout(tracker, PROBLEMS, rollout, model, params, config())


def drift_by_hand(episode: Episode, then: Any, now: Any) -> float:
    """The drift of one response, scored as a sequence by itself."""

    def logprobs(params: Any) -> np.ndarray:
        padded = np.array([episode.tokens + [0] * (14 - len(episode.tokens))], np.int32)
        logits = cases.logits(params, padded)[0] / 0.8
        table = np.asarray(jax.nn.log_softmax(logits))
        start = len(episode.prompt)
        taken = enumerate(episode.response, start=start - 1)
        return np.array([table[t, token] for t, token in taken])

    return float(np.abs(logprobs(now) - logprobs(then)).mean())


# --- the draw


def test_a_draw_has_distinct_problems_by_seed_iteration_and_weights():
    weights = np.linspace(0.1, 1, 6, dtype=np.float32)
    drawn = draw(PROBLEMS, 4, 0, 1, weights)
    assert len({p.id for p, _ in drawn}) == 4 and drawn == draw(PROBLEMS, 4, 0, 1, weights)
    assert drawn == draw(PROBLEMS, None, 0, 1, weights)[:4]
    assert drawn == draw(PROBLEMS, 4, 0, 1, 7 * weights)
    others = [draw(PROBLEMS, 4, seed, iteration, weights) for seed, iteration in ((0, 2), (1, 1))]
    assert all(other != drawn for other in others)
    assert draw(PROBLEMS, 4, 0, 1, weights[::-1]) != drawn


def test_the_chance_of_a_draw_is_that_of_its_weights():
    """The first two of three problems have the probability w_i / W · w_j / (W - w_i)."""
    weights = np.array([0.55, 0.35, 0.05], np.float32)
    runs = 8000
    found = dict.fromkeys(itertools.permutations("012", 2), 0)
    for iteration in range(runs):
        first, second = draw(PROBLEMS[:3], 2, 5, iteration, weights)
        found[first[0].id[1], second[0].id[1]] += 1
    total = float(weights.sum())
    for (i, j), times in found.items():
        a, b = float(weights[int(i)]), float(weights[int(j)])
        chance = a / total * b / (total - a)
        error = (chance * (1 - chance) / runs) ** 0.5
        assert abs(times / runs - chance) < 4 * error, (i, j)


def test_weights_are_those_of_the_tracked_values():
    rewards = np.array([[0, 0, 0], [1, 0, 0.5], [1, 1, 1]], np.float32)
    tracker = single_stream.first_tracker(config(), rewards)
    values = np.array([1 / 8, 1 / 2, 7 / 8])
    np.testing.assert_allclose(tracker.alpha, 8 * values, rtol=1e-6)
    weights = single_stream.problem_weights(tracker, config(single_stream={"explore": 0.1}))
    np.testing.assert_allclose(weights, np.sqrt(values * (1 - values)) + 0.1, rtol=1e-6)


# --- the credit


def test_credit_is_against_the_values_before_the_rewards_are_counted():
    rewards = [1.0, 0.0, 0.25]
    rollout = sampled("420", rewards, 0, cases.params())
    start = np.array([[0], [1], [1], [0], [0], [1]], np.float32)
    tracker = single_stream.first_tracker(config(), start)
    values = single_stream.values_before(tracker, PROBLEMS, rollout.episodes, rollout.batch)
    assert values.shape == rollout.batch.tokens.shape and not values[3].any()
    expected = np.array([0.25, 0.75, 0.25])
    np.testing.assert_allclose(values[:3], np.repeat(expected[:, None], values.shape[1], 1))
    raw = np.array(rewards) - expected
    advantages = (raw - raw.mean()) / raw.std(ddof=1)
    found = assign_credit(rollout._replace(values=values), config(), "none")
    mask = rollout.batch.mask
    by_row = np.append(advantages, 0.0)[:, None]
    np.testing.assert_allclose(found.advantages, np.where(mask, by_row, 0.0), rtol=1e-5)


# --- counting, and the drift


def test_counting_changes_the_drawn_problems_alone_and_remembers_their_responses():
    params = cases.params()
    fresh = single_stream.fresh_tracker(config(), len(PROBLEMS))
    untouched = jax.tree.map(np.copy, fresh)
    rollout = sampled("420", [1.0, 0.0, 0.25], 0, params)
    tracker, metrics = count(fresh, rollout, params)
    cases.assert_equal(fresh, untouched)
    np.testing.assert_allclose(tracker.alpha, [4.09, 4, 3.84, 4, 4.84, 4], rtol=1e-6)
    np.testing.assert_allclose(tracker.beta, [4.59, 4, 4.84, 4, 3.84, 4], rtol=1e-6)
    assert metrics["tracker/new"] == 1 and metrics["tracker/drift"] == 0
    assert metrics["tracker/value"] == 0.5 and metrics["tracker/count"] == 8
    assert metrics["tracker/retention"] == pytest.approx(0.96)
    for row, episode in enumerate(rollout.episodes):
        place, n = int(episode.problem_id[1]), len(episode.response)
        assert tracker.lengths[place] == n
        assert tracker.tokens[place].tolist() == episode.response + [0] * (12 - n)
        logprobs = rollout.batch.old_logprobs[row, 2 : 2 + n]
        np.testing.assert_array_equal(tracker.logprobs[place, :n], logprobs)
        assert not tracker.logprobs[place, n:].any()
    assert tracker.lengths[[1, 3, 5]].tolist() == [0, 0, 0]


def test_another_number_of_known_problems_compiles_nothing():
    params, cfg = cases.params(), config()
    rollout, compiled = sampled("012", [1.0, 0.0, 1.0], 0, params), []
    for known in (1, 2, 3):
        tracker = single_stream.fresh_tracker(cfg, len(PROBLEMS))
        tracker.lengths[:known] = 2
        before, places = num_compiles(), np.arange(3)
        single_stream.drift_since(tracker, places, rollout, cases.model(), params, cfg)
        compiled.append(num_compiles() - before)
    assert compiled[1:] == [0, 0]


def test_the_drift_is_that_of_the_last_response_since_it_was_sampled():
    """Problem 2 is drawn by all of three policies, and problem 4 by the first and the last."""
    policies = [cases.params(), *(
        jax.tree.map(lambda x, n=n: x * (1 + 0.0015 * n), cases.params()) for n in (1, 2)
    )]  # fmt: skip
    rollouts = [
        sampled(names, [1.0, 0.0, 1.0], seed, params)
        for seed, (names, params) in enumerate(zip(("024", "123", "542"), policies, strict=True))
    ]
    tracker = single_stream.fresh_tracker(config(), len(PROBLEMS))
    for rollout, params in zip(rollouts[:2], policies, strict=False):
        tracker, metrics = count(tracker, rollout, params)
    drift = drift_by_hand(rollouts[0].episodes[1], policies[0], policies[1])
    assert metrics["tracker/drift"] == pytest.approx(drift, rel=1e-3)
    assert metrics["tracker/new"] == pytest.approx(2 / 3)
    after, metrics = count(tracker, rollouts[2], policies[2])
    expected = [
        0.0,  # problem 5 is new
        drift_by_hand(rollouts[0].episodes[2], policies[0], policies[2]),
        drift_by_hand(rollouts[1].episodes[1], policies[1], policies[2]),
    ]
    places = np.array([5, 4, 2])
    kept = np.clip(2 ** (-np.array(expected) / 0.06), 0.875, 0.96)
    assert 0.875 < kept[2] < 0.96 and kept[1] != kept[2]  # the bounds are not reached here
    rewards = np.array([1.0, 0.0, 1.0])
    np.testing.assert_allclose(
        after.alpha[places], kept * tracker.alpha[places] + rewards, rtol=1e-4
    )
    np.testing.assert_allclose(
        after.beta[places], kept * tracker.beta[places] + 1 - rewards, rtol=1e-4
    )
    assert metrics["tracker/drift"] == pytest.approx(np.mean(expected[1:]), rel=1e-3)


@pytest.mark.parametrize("reward", [-0.5, 1.5, float("nan")])
def test_a_reward_that_is_no_share_of_a_success_is_refused(reward: float):
    params = cases.params()
    rollout = sampled("01", [1.0, 0.0], 0, params)
    wrong = dataclasses.replace(rollout.episodes[1], reward=reward)
    tracker = single_stream.fresh_tracker(config(), len(PROBLEMS))
    with refuses("method"):
        count(tracker, rollout._replace(episodes=[rollout.episodes[0], wrong]), params)


# --- the first values


def test_the_first_values_are_of_solutions_that_are_not_trained_on(monkeypatch: pytest.MonkeyPatch):
    seen, told = [], []

    def sample(sampler, params, problems, most_groups):
        count = sampler.cfg.rollout.per_prompt
        seen.append((len(problems), count, sampler.iteration))
        return [
            cases.episode(prompt, [1], problem_id=problem.id, reward=float(problem.id == "p4" or k))
            for problem, prompt in problems
            for k in range(count)
        ]

    monkeypatch.setattr(Sampler, "solutions", sample)
    cfg = config(rollout={"prompts": 4, "per_prompt": 1}, single_stream={"start_samples": 2})
    session = mock.Mock(spec=Session, cfg=cfg, problems={"train": PROBLEMS})
    session.engine, session.graded = mock.Mock(spec=Engine), mock.Mock(spec=GradedTask)
    tracker = single_stream.sampled_tracker(session, {}, lambda *done: told.append(done))
    assert seen == [(4, 2, -1), (2, 2, -1)] and told == [(8, 12), (12, 12)]
    expected = [8 * 1.5 / 3] * 4 + [8 * 2.5 / 3] + [8 * 1.5 / 3]
    np.testing.assert_allclose(tracker.alpha, expected, rtol=1e-6)
    np.testing.assert_allclose(tracker.alpha + tracker.beta, 8, rtol=1e-6)
    assert not tracker.lengths.any()


# --- restarts


def test_a_restored_tracker_goes_on_bit_for_bit(tmp_path: Path):
    params = cases.params()
    tracker = single_stream.fresh_tracker(config(), len(PROBLEMS))
    tracker, _ = count(tracker, sampled("024", [1.0, 0.0, 0.25], 0, params), params)
    policy = TrainState(jax.numpy.int32(4), params, {})
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, RunState(policy, tracker), {})
    fresh = single_stream.fresh_tracker(config(), len(PROBLEMS))
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        restored, _ = checkpoints.restore(1, RunState(policy, fresh))
    for found, expected in zip(restored.kept, tracker, strict=True):
        assert isinstance(found, np.ndarray) and found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    weights = [single_stream.problem_weights(x, config()) for x in (restored.kept, tracker)]
    drawn = [draw(PROBLEMS, 3, 0, 1, w) for w in weights]
    assert drawn[0] == drawn[1]
    later = jax.tree.map(lambda x: x * 1.01, params)
    names = "".join(problem.id[1] for problem, _ in drawn[0])
    rollout = sampled(names, [0.0, 1.0, 1.0], 1, later)
    cases.assert_equal(count(restored.kept, rollout, later), count(tracker, rollout, later))


def test_a_tracker_of_other_problems_is_refused(tmp_path: Path):
    state = RunState(TrainState(jax.numpy.int32(4), {"w": jax.numpy.ones(3)}, {}))
    trackers = [single_stream.fresh_tracker(config(), n) for n in (6, 5)]
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state._replace(kept=trackers[0]), {})
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        with pytest.raises(
            WorkdirError, match=r"1: keeps alpha of shape \(6,\), and this data needs \(5,\)"
        ):
            checkpoints.restore(1, state._replace(kept=trackers[1]))
        # A method without a tracker does not read it; one with a tracker needs it.
        assert checkpoints.restore(1, state)[0].kept is None
    with Checkpoints(tmp_path / "other", keep=1) as checkpoints:
        checkpoints.save(1, state, {})
        with pytest.raises(WorkdirError, match="kept"):
            checkpoints.restore(1, state._replace(kept=trackers[0]))
