"""The soft penalty on overlong responses: what a solution and a continuation lose."""

import dataclasses

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers import rl_oracles as oracle
from helpers.applied import applied, policy_objective, sampler
from helpers.vine_cases import PROBLEM, FakeEngine, Task, episode, rewards_of
from helpers.vine_cases import config as vine_config

from vinejax.core.settings import Config
from vinejax.rl.advantages import overlong_penalty
from vinejax.rollout.overlong import penalised_episodes
from vinejax.rollout.vine import fill_values

LENGTHS = np.array([r for _, r in methods.LENGTHS])
GROUPS = np.arange(8) // 4


def dapo(**sections) -> Config:
    return methods.config("dapo", sample={"max_tokens": 12}, reward={"overlong": 0.5}, **sections)


def by_row(cfg: Config, rewards: np.ndarray) -> np.ndarray:
    """The advantage of each solution, at its first token."""
    solutions = [
        dataclasses.replace(e, reward=float(r))
        for e, r in zip(methods.episodes(), rewards, strict=True)
    ]
    found = methods.credit(cfg, solutions=penalised_episodes(solutions, applied(cfg)))
    mask = np.asarray(methods.batch().mask)
    advantages = np.asarray(found.advantages)
    return advantages[np.arange(8), mask.argmax(axis=1)]


def test_the_penalty():
    lengths = np.array([0, 80, 90, 99, 100, 120])
    expected = [0, 0, -0.5, -0.95, -1, -1]
    np.testing.assert_allclose(overlong_penalty(lengths, 100, 20), expected, atol=1e-6)
    assert not overlong_penalty(lengths, 100, 0).any()


def test_dapo_penalises_long_responses():
    cfg, rewards = dapo(), np.array(methods.REWARDS)
    penalty = np.clip((12 - 6 - LENGTHS) / 6, -1, 0)
    assert penalty.min() < -0.5 and (penalty == 0).any()
    expected = oracle.group_advantages(rewards + 0.5 * penalty, GROUPS, "grpo")
    np.testing.assert_allclose(by_row(cfg, rewards), expected, atol=1e-5)
    assert policy_objective(cases.model(), cfg).clip == (0.2, 0.28)
    own = applied(methods.config("dapo"))
    assert (own.reward.overlong, own.rollout.zero_variance, own.rollout.rounds) == (
        0.2,
        "resample",
        4,
    )


def test_it_is_half_of_what_lies_between_right_and_wrong():
    """As where a wrong solution has -1, a right one 1, and the penalty goes to -1: the advantages
    are the same, but for the 1e-8 beside the standard deviation."""
    rewards = np.array([1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    published = 2 * rewards - 1 + np.clip((12 - 6 - LENGTHS) / 6, -1, 0)
    expected = oracle.group_advantages(published, GROUPS, "grpo")
    np.testing.assert_allclose(by_row(dapo(), rewards), expected, atol=1e-5)


def test_groups_that_fill_up_are_not_penalised():
    """DAPO learns nothing from a group that differs in length alone; GRPO with a penalty does."""
    rewards = np.array([1.0] * 4 + methods.REWARDS[4:])
    found = by_row(dapo(), rewards)
    assert not found[:4].any() and found[4:].any()
    assert by_row(dapo(rollout={"zero_variance": "keep"}), rewards)[:4].any()


def test_rewards_of_the_report_stay_as_they_are():
    cfg = applied(dapo(rollout={"zero_variance": "keep"}))
    (found,) = penalised_episodes([dataclasses.replace(methods.episodes()[4], reward=1.0)], cfg)
    assert found.reward == 1.0 and found.outcome == pytest.approx(1 - 0.5 * 4 / 6)
    assert sum(found.rewards) == found.outcome


def test_continuations_pay_for_their_whole_length():
    """V(s) is the mean of what solutions from s get, so the first step's advantage is the next
    state's value less its own, penalties included."""
    cfg = vine_config(k=2)
    cfg = dataclasses.replace(cfg, reward=dataclasses.replace(cfg.reward, overlong=0.99))
    engine = FakeEngine(lambda branch, k: ("\n#### 4" if k else "\n1+1=2\n#### 4", "stop"))
    one = episode(("\n2+3=5", "\n5-1=4\n#### 4"))
    (paid,) = penalised_episodes([one], applied(cfg))
    values = []
    for solution in (one, paid):
        chosen = sampler(engine, rewards_of(Task()), cfg)
        (filled,) = fill_values(chosen, {}, [PROBLEM], [solution])
        lengths = [b.position - len(one.prompt) for b in engine.branches]
        grown = [c for group in filled.continuations for c in group]
        values.append(np.array([c.reward for c in grown]))
        assert all(c.outcome == 1 for c in grown)
    tokens = np.array(lengths) + [len(cases.encode(t)) for t in ("\n1+1=2\n#### 4", "\n#### 4")] * 2
    budget = cfg.sample.max_tokens
    lost = np.clip((tokens - 0.01 * budget) / (0.99 * budget), 0, 1) / 2
    assert (values[0] == 1).all() and lost.min() > 0.05
    np.testing.assert_allclose(values[1], 1 - lost, atol=1e-6)
