"""The probe's states, features and place in VinePPO's baselines, by hand."""

from typing import Any

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.applied import stand_in

from vinejax.core.types import Episode, Rollout
from vinejax.credit import probe
from vinejax.learner.batch import collate, step_layout
from vinejax.methods import learned_value
from vinejax.methods.credit_by_role import step_credit
from vinejax.methods.learned_value import LearnedValue, probe_features, states_of
from vinejax.session.session import Session

# Returns at the states of three solutions, of which the first and the last are of one problem.
RETURNS = np.array([0.5, 1.0, 0.5, 0.0, 0.0])  # outcomes of 1, 0.5 and 0, with γ = ½
SIBLINGS = np.array([0.0, 0.0, 0.25, 1.0, 1.0])  # the second has none: the mean target
HIDDEN = np.arange(1, 6, dtype=np.float32)[:, None]


def solution(problem: str, reward: float, values: list[float], counts: list[int]) -> Episode:
    """A solution with steps of one token. Without a count a step begins at no state."""
    steps = len(values)
    known = np.array([*counts, *[0] * (steps - len(counts))], np.int32)
    return cases.episode(
        [cases.BOS, 5],
        [7, 8, 9, 7][:steps],
        problem_id=problem,
        reward=reward,
        step_ends=list(range(1, steps + 1)),
        values=np.array(values, np.float32),
        is_state=np.arange(steps) < len(counts),
        value_counts=known,
    )


def rollout_of(*episodes: Episode) -> Rollout:
    batch = collate([*episodes], 1)
    return Rollout([*episodes], batch, step_layout(batch, [*episodes]), hidden=HIDDEN)


def three() -> Rollout:
    return rollout_of(
        solution("a", 1.0, [0.25, 0.9], [2, 0]),
        solution("b", 0.5, [0.5], [1]),
        solution("a", 0.0, [0.25, 0.75], [2, 3]),
    )


def kept() -> probe.Probe:
    """A probe with a mean target of 1/4 and a weight of 1/4."""
    moments = probe.Moments(np.diag([4.0, 1.0, 1.0, 1.0, 1.0]), np.array([1.0, 2, 0, 1, 0]))
    return probe.Probe(moments, np.arange(6.0), np.array([1.0, 4.0]))


def config(**credit: Any) -> Any:
    return cases.config(ppo={"gamma": 0.5}, values={"prior": "probe"}, credit=credit)


def test_states_and_features():
    cfg, rollout = config(), three()
    states = states_of(rollout, cfg, probe_features(rollout, kept(), cfg))
    used = np.array([0, 1, 0, 0, 1]) / cfg.sample.max_tokens
    h = HIDDEN[:, 0]
    expected = np.stack([np.ones(5), SIBLINGS, used, h, h * SIBLINGS], axis=1)
    np.testing.assert_allclose(states.features, expected)
    assert states.problem.tolist() == [0, 0, 1, 0, 0] and states.count.tolist() == [2, 0, 1, 2, 3]
    np.testing.assert_allclose(states.solution_return, RETURNS)
    np.testing.assert_allclose(states.value, [0.25, 0.9, 0.5, 0.25, 0.75], rtol=1e-6)


def test_values_stand_before_their_steps_and_the_weight_compares_them_with_the_baselines():
    cfg, rollout, rule = config(baseline_lambda=0.5, lambda_=0.25), three(), LearnedValue()
    valued = rule.with_prior(stand_in(Session), rollout, kept(), cfg)
    assert valued.values is not None and valued.weight == 0.25
    v = probe.chosen(kept(), valued.prediction.by_strength)
    at = (np.array([0, 0, 1, 2, 2]), np.array([2, 3, 2, 2, 3]))
    assert np.ptp(v) > 0.1 and np.count_nonzero(valued.values) == 5
    np.testing.assert_allclose(valued.values[at], v, rtol=1e-6)
    fixed = rule.with_prior(stand_in(Session), rollout, kept(), config(prior=0.75))
    assert fixed.weight == 0.75
    # The second state has no value: b = (0.25 - 0) / γ. The last is ½·0.75 + ½·0.25 / γ.
    b = np.array([0.25, 0.5, 0.5, 0.25, 0.625])
    found, _ = rule.learned(kept(), valued, cfg)
    expected = np.array([np.sum((RETURNS - b) * (v - b)), np.sum((v - b) ** 2)])
    np.testing.assert_allclose(found.gain, expected + probe.KEPT * kept().gain, rtol=1e-5)


def test_all_hosts_take_the_values_and_the_weight_of_the_first(monkeypatch: pytest.MonkeyPatch):
    """Hosts whose processors round differently would give one update two advantages."""
    sent: list[dict[int, Any]] = []

    def shared_work(own: dict[int, Any]) -> dict[int, Any]:
        sent.append(own)
        return {0: ([0.5] * 5, 0.125)}

    monkeypatch.setattr(learned_value, "shared_work", shared_work)
    for is_writer in (True, False):
        monkeypatch.setattr(learned_value, "is_writer", lambda is_writer=is_writer: is_writer)
        valued = LearnedValue().with_prior(stand_in(Session), three(), kept(), config())
        assert valued.weight == 0.125 and valued.values is not None
        assert valued.values[valued.values > 0].tolist() == [0.5] * 5
    assert sent[0][0][1] == 0.25 and sent[1] == {}


def test_credit_by_role_by_hand():
    """λ = ½, w = ¼ and μ = 0.6: Q = 0.75, 0.75, 1, and b' = 0.31, 0.52, 0.6025.

    The last step begins at no state. In the second row the first state has no value of its own.
    """
    cfg = cases.config(credit={"lambda_": 0.5, "baseline_lambda": 0.25})
    rollout = rollout_of(
        solution("a", 1.0, [0.25, 0.75, 0.5, 1.0], [2, 2, 2]),
        solution("a", 0.0, [0.9, 0.5], [0, 2]),
    )
    learned = np.zeros(rollout.batch.tokens.shape, np.float32)
    learned[0, 2:6], learned[1, 2:4] = [0.35, 0.45, 0.65, 0.125], [0.25, 0.5]
    credit = step_credit(rollout._replace(values=learned, weight=0.6), cfg)
    expected = [[0.44, 0.23, 0.3975, 0.0], [0.0, -0.5, 0.0, 0.0]]
    np.testing.assert_allclose(np.asarray(credit.by_step)[:, :4], expected, atol=1e-6)
    np.testing.assert_allclose(np.asarray(credit.advantages)[:, 2:6], expected, atol=1e-6)
