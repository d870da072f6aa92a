"""The states that are compared with the truth, and the seeds of the truth's rollouts."""

import dataclasses
from collections import Counter
from typing import Any
from unittest import mock

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.chain_cases import CHAIN, simulation
from helpers.tools.bench_cases import chain_solutions, chain_value, sampling
from helpers.vine_cases import (
    MAX_TOKENS,
    PROMPT,
    RIGHT,
    WRONG,
    FakeEngine,
    alternate,
    boundaries,
    config,
    episode,
    fill,
)

from vinejax.core.types import Episode
from vinejax.engine.branches import Branch
from vinejax.rollout.sampler import Sampler
from vinejax.rollout.vine import fill_values
from vinejax.tools.bench import truth
from vinejax.tools.bench.next_steps import sample_next_steps, step_returns
from vinejax.tools.bench.truth import (
    SolutionState,
    choose_states,
    positions_of_states,
    solution_states,
    true_returns,
    values_at,
)
from vinejax.tools.bench.value_error import truth_of

EPISODES = [episode(RIGHT), episode(WRONG, reward=0.0), episode(RIGHT)]


class Recorder(FakeEngine):
    """An engine that keeps the branches and budgets of all calls."""

    def __init__(self, script=alternate):
        super().__init__(script)
        self.all: list[Branch] = []
        self.all_budgets: list[int] = []

    def stream(self, params, trunks, branches, max_tokens=None, scored=False):
        self.all += branches
        self.all_budgets += list(max_tokens or [])
        return super().stream(params, trunks, branches, max_tokens, scored)


def returns_of(engine: FakeEngine, states: list[SolutionState], count: int = 6, **values: Any):
    sampler, params, problems = sampling(engine, config(**values))
    return true_returns(sampler, params, problems, EPISODES, states, count)


def solution(problem: str, *steps: int, first: int = 0) -> Episode:
    """A solution whose steps have these numbers of tokens; the tokens count up from `first`."""
    tokens = list(range(first, first + sum(steps)))
    return cases.episode(PROMPT, tokens, problem_id=problem, step_ends=np.cumsum(steps).tolist())


def test_states_lie_between_steps():
    assert solution_states([solution("a", 2, 3, 1), solution("a"), solution("b", 4)]) == [
        SolutionState(0, 0, 0),
        SolutionState(0, 1, 2),
        SolutionState(0, 2, 5),
        SolutionState(2, 0, 0),
    ]
    reset = dataclasses.replace(solution("a", 2, 3, 1), given=2, step_ends=[5, 6])
    assert solution_states([reset]) == [SolutionState(0, 0, 2), SolutionState(0, 1, 5)]


def test_positions_are_shares_of_tokens():
    episodes = [solution("a", 2, 3, 5), solution("b", 4)]
    shares, problems = positions_of_states(episodes, solution_states(episodes))
    np.testing.assert_array_equal(shares, [0, 0.2, 0.5, 0])
    assert problems == ["a", "a", "a", "b"]


def test_equal_prefixes_are_chosen_once():
    # The second solution has two states of the first; the other problem has its own.
    episodes = [solution("a", 2, 3, 1), solution("a", 2, 4), solution("b", 2, 3)]
    found = choose_states(episodes, 100, seed=0)
    assert [(i, used) for i, _, used in found] == [(0, 0), (0, 2), (0, 5), (2, 0), (2, 2)]
    before_last = choose_states(episodes, 100, seed=0, with_last=False)
    assert [(i, used) for i, _, used in before_last] == [(0, 0), (0, 2), (2, 0)]


def test_problems_and_positions_take_turns():
    # One problem with many solutions, two with one; steps of one token, ten per solution.
    tens = [1] * 10
    many = [solution("a", *tens, first=i) for i in range(20)]
    episodes = [*many, solution("b", *tens), solution("c", *tens)]
    for count in (3, 6, 15, 30):
        found = choose_states(episodes, count, seed=1)
        problems = Counter(episodes[state.episode].problem_id for state in found)
        assert set(problems.values()) == {count // 3}
    for name in "abc":
        used = [
            s.used for s in choose_states(episodes, 15, 1) if episodes[s.episode].problem_id == name
        ]
        assert sorted(u // 2 for u in used) == [0, 1, 2, 3, 4]  # one in each fifth
    # What the others lack, the first problem gives; and there are no more than there are.
    assert len(choose_states(episodes, 50, seed=1)) == 50
    everything = choose_states(episodes, 10**6, seed=1)
    assert len(everything) == 1 + 20 * 9 + 2 * 10


def test_the_choice_depends_on_the_seed_alone():
    episodes = [solution("a", *[1] * 30, first=i) for i in range(5)]
    found = [choose_states(episodes, 12, seed) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert found[0] == sorted(found[0]) and len(set(found[0])) == 12


def test_returns_are_those_of_the_states_rollouts():
    engine = FakeEngine(alternate)
    states = solution_states(EPISODES)
    found = returns_of(engine, states)
    assert found.shape == (len(states), 6)
    positions = [p for one in EPISODES for p in boundaries(one)]
    for row, position in zip(found, positions, strict=True):
        expected = [float(k * 5 < position) for k in range(6)]  # by the script
        np.testing.assert_array_equal(row, expected)
    # The third solution is the first again, and all share s_0: 2 + 3 states are sampled.
    assert len(engine.branches) == 6 * (2 + len(WRONG) - 1)


def test_rollouts_have_what_the_solution_had_left():
    """The budget of the truth does not depend on `values.budget` of the estimates."""
    engine = Recorder()
    states = [SolutionState(1, c, used) for c, used in enumerate([0, *EPISODES[1].step_ends[:-1]])]
    returns_of(engine, states, count=2, budget="fresh")
    assert engine.all_budgets == [MAX_TOKENS - s.used for s in states for _ in range(2)]


def test_parts_change_nothing():
    states = solution_states(EPISODES)
    whole, parts = Recorder(), Recorder()
    expected = returns_of(whole, states)
    with mock.patch.object(truth, "MAX_BRANCHES", 13):  # two states a call
        np.testing.assert_array_equal(returns_of(parts, states), expected)
    assert [b.seed for b in parts.all] == [b.seed for b in whole.all]


def test_no_states():
    assert returns_of(FakeEngine(alternate), []).shape == (0, 6)


def test_truth_and_estimates_share_no_seed():
    """Estimates of several iterations, and each kind of rollout that the bench draws."""
    cfg = config(k=9, dedup=False)
    estimates, bench = Recorder(), Recorder()
    for iteration in range(3):
        sampler, params, problems = sampling(estimates, cfg, iteration)
        fill_values(sampler, params, problems, EPISODES)
    used = {b.seed for b in estimates.all}
    assert len(used) == len(estimates.all) > 100
    states = choose_states(EPISODES, 100, seed=cfg.seed)
    for iteration in range(3):
        sampler, params, problems = sampling(bench, cfg, iteration)
        true_returns(sampler, params, problems, EPISODES, states, count=9)
        bench.script = lambda branch, k: (f"\n{k}+1={k + 1}\n2+2=4\n#### 4", "eos")
        choices = sample_next_steps(sampler, params, problems, EPISODES, states).choices
        assert choices
        for purpose in ("truth", "prediction"):
            step_returns(sampler, params, choices, count=9, purpose=purpose)
        bench.script = alternate
    own = {b.seed for b in bench.all}
    assert len(own) == len(bench.all) > 500
    assert not own & used


def test_true_values_of_a_chain_are_those_in_closed_form():
    rng = np.random.default_rng(0)
    episodes, problems = chain_solutions(CHAIN, rng, problems=6)
    states = choose_states(episodes, 60, seed=0)
    drawn_in: list[int] = []
    simulate = simulation(CHAIN.draw(rng), drawn_in)
    sampler, params, _ = sampling(FakeEngine(alternate), config(), problems=problems)
    with mock.patch.object(Sampler, "continuations", simulate):
        returns = true_returns(sampler, params, problems, episodes, states, count=256)
    assert drawn_in == [256 * len(states)]
    found = truth_of(returns)
    exact = [chain_value(CHAIN, episodes[i].response[:used]) for i, _, used in states]
    z = (found.means - exact) / np.sqrt(found.variances + 1e-12)
    assert np.abs(z).max() < 4.5
    assert 0.5 < np.mean(z[found.variances > 0] ** 2) < 1.8


def test_values_at_the_states_of_other_steps():
    filled, _ = fill(EPISODES, config(k=4, merge=2))
    states = solution_states(EPISODES)
    found = values_at(filled, states)
    # `merge` 2 keeps s_0 and s_2: of the first and third solution s_0 alone, of the second both.
    known = [(s.episode, s.step) for s, x in zip(states, found, strict=True) if np.isfinite(x)]
    assert known == [(0, 0), (1, 0), (1, 2), (2, 0)]
    assert filled[1].values is not None
    np.testing.assert_array_equal(found[[2, 4]], filled[1].values)


def test_states_whose_values_only_make_advantages_zero_have_none():
    capped, _ = fill(EPISODES[1:2], config(k=4, max_states=1))
    states = solution_states(EPISODES[1:2])
    assert np.isfinite(values_at(capped, states, max_states=1)).tolist() == [
        True,
        True,
        False,
        False,
    ]
    counts = np.array([0, 4, 0, 0], np.int32)
    later = [dataclasses.replace(capped[0], value_counts=counts)]
    assert np.isfinite(values_at(later, states)).tolist() == [False, True, True, True]
    nothing = [dataclasses.replace(capped[0], value_counts=0 * counts)]
    assert not np.isfinite(values_at(nothing, states)).any()
    critic = [dataclasses.replace(capped[0], value_counts=None)]
    assert np.isfinite(values_at(critic, states)).all()
    with pytest.raises(ValueError, match="episode 0 of problem train/7: no values"):
        values_at(EPISODES, states)
