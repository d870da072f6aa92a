"""The next steps at states, cut by token, and rollouts after them."""

import dataclasses
from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.chain_cases import Draw, simulation
from helpers.tools.bench_cases import FAIR, chain_solutions, chain_value, interval, number, sampling
from helpers.vine_cases import (
    MAX_TOKENS,
    PROBLEM,
    PROMPT,
    RIGHT,
    FakeEngine,
    alternate,
    boundaries,
    config,
    episode,
)

from vinejax.credit.samples import Sample
from vinejax.engine.branches import Branch
from vinejax.rollout.sampler import Sampler
from vinejax.tools.bench.next_steps import (
    NextStep,
    NextStepChoice,
    NextSteps,
    sample_next_steps,
    step_returns,
    step_values,
)
from vinejax.tools.bench.ranking import ranking_scores
from vinejax.tools.bench.truth import SolutionState, choose_states

EPISODES = [episode(RIGHT)]
START, SECOND = SolutionState(0, 0, 0), SolutionState(0, 1, EPISODES[0].step_ends[0])
FROM_START = [
    "\n2+3=5\n5-1=4\n#### 4",
    "\n2+3=5\n5-1=3\n#### 3",
    "\n2+3=6\n6-1=5\n#### 5",
    "\n#### 4",
    "\n2+3=5",
]
FROM_SECOND = ["\n5-1=4\n#### 4", "\n5-1=3\n#### 3", "\n#### 5", "\n#### 5", "\n#### 4"]


def scripted(branch: Branch, k: int) -> tuple[str, str]:
    return (FROM_START if branch.position == len(PROMPT) else FROM_SECOND)[k], "eos"


def sample(engine: FakeEngine, states: list[SolutionState], least: int = 2) -> NextSteps:
    sampler, params, problems = sampling(engine, config())
    return sample_next_steps(sampler, params, problems, EPISODES, states, least=least)


def ids(text: str) -> list[int]:
    return cases.encode(text)


def test_steps_are_cut_by_token():
    found = sample(FakeEngine(scripted), [START])
    assert found.tried == 1 and found.few == found.decided == 0
    (choice,) = found.choices
    assert choice.state == START and choice.problem == PROBLEM[0] and choice.prompt == PROMPT
    # The first and second draws begin alike. The last has the same step, but ends with it.
    assert choice.steps == [
        NextStep(ids("\n2+3=5"), 0.0, False),
        NextStep(ids("\n2+3=6"), 0.0, False),
        NextStep([*ids("\n#### 4"), cases.EOS], 1.0, True),
        NextStep([*ids("\n2+3=5"), cases.EOS], 0.0, True),
    ]


def test_steps_after_a_beginning_have_it():
    def goes_on(branch: Branch, k: int) -> tuple[str, str]:
        return f"\n5-1={k // 3}\n#### 4", "eos"

    def further(branch: Branch, k: int) -> tuple[str, str]:
        return f"\n5-1={k // 3}\n9-5=4\n#### 4", "eos"

    # An answer line belongs to the step before it, so these steps are the last.
    assert sample(FakeEngine(goes_on), [SECOND]).decided == 1
    (choice,) = sample(FakeEngine(further), [SECOND]).choices
    before = EPISODES[0].response[: SECOND.used]
    assert [step.tokens for step in choice.steps] == [before + ids(f"\n5-1={i}") for i in (0, 1)]


def test_states_that_are_not_kept():
    engine = FakeEngine(scripted)
    found = sample(engine, [START, SECOND])
    assert (found.tried, found.few, found.decided) == (2, 0, 1)
    assert [choice.state for choice in found.choices] == [START]
    assert engine.states() == [(0, position) for position in boundaries(EPISODES[0])]
    same = FakeEngine(lambda branch, k: ("\n2+3=5\n5-1=4", "eos"))
    found = sample(same, [START])
    assert (found.choices, found.tried, found.few, found.decided) == ([], 1, 1, 0)
    assert len(sample(FakeEngine(scripted), [START], least=4).choices) == 1
    assert sample(FakeEngine(scripted), [START], least=5).few == 1
    assert sample(FakeEngine(scripted), []) == NextSteps([], 0, 0, 0)


def test_returns_after_steps():
    (choice,) = sample(FakeEngine(scripted), [START]).choices

    def answers(branch: Branch, k: int) -> tuple[str, str]:
        return ("\n#### 4" if k < 2 + branch.trunk else "\n#### 5"), "eos"

    engine = FakeEngine(answers)
    sampler, params, _ = sampling(engine, config())
    (returns,) = step_returns(sampler, params, [choice], count=4, purpose="truth")
    expected = [[1, 1, 0, 0], [1, 1, 1, 0], [1] * 4, [0] * 4]  # the last two have ended
    np.testing.assert_array_equal(returns, expected)
    assert engine.trunks == [PROMPT + ids("\n2+3=5"), PROMPT + ids("\n2+3=6")]
    assert [(b.position, b.response) for b in engine.branches] == [
        (len(trunk), len(PROMPT)) for trunk in engine.trunks for _ in range(4)
    ]
    used = [len(trunk) - len(PROMPT) for trunk in engine.trunks]
    assert engine.budgets == [MAX_TOKENS - n for n in used for _ in range(4)]


def test_a_critics_values_count_after_steps_that_do_not_end():
    steps = [NextStep([1], 0.5, False), NextStep([2], 0.25, False), NextStep([3, 1], 1.0, True)]
    choice = NextStepChoice(START, PROBLEM[0], PROMPT, steps)
    np.testing.assert_array_equal(step_values(choice, [0.5, 1.0, np.nan], 0.5), [0.75, 0.75, 1.0])
    with pytest.raises(ValueError, match="zip"):
        step_values(choice, [0.5], 0.5)


def stepwise(samples: Iterator[Sample]) -> Draw:
    return lambda wanted: [next(samples) for _ in wanted]


def test_rewards_of_steps_and_discount():
    """Q = r + γ·(r' + γ·outcome): by hand, for steps with rewards of their own."""
    cfg = cases.config(values={"k": 4, "max_states": None}, ppo={"gamma": 0.5})
    begin = np.array([3, 4, 5], np.int32)  # SolutionState START: all of it is drawn
    draws = [
        Sample(begin, 0, ends=[1, 3], rewards=[0.25, 1.0], outcome=2.0),
        Sample(begin + 1, 0, ends=[3], rewards=[0.125], outcome=2.0),
    ]
    sampler, params, problems = sampling(FakeEngine(alternate), cfg)
    simulate = simulation(stepwise(iter(draws)), [])
    with mock.patch.object(Sampler, "continuations", simulate):
        sampled = sample_next_steps(sampler, params, problems, EPISODES, [START], draws=2)
    (choice,) = sampled.choices
    assert choice.steps == [NextStep([3], 0.25, False), NextStep([4, 5, 6], 2.125, True)]
    after = [
        Sample(np.array([3, 7, 8]), 1, ends=[1, 2, 3], rewards=[0.25, 1.0, 0.0], outcome=2.0),
        Sample(np.array([3, 9]), 1, ends=[1, 2], rewards=[0.25, 0.5], outcome=0.0),
    ]
    with mock.patch.object(Sampler, "continuations", simulation(stepwise(iter(after)), [])):
        (returns,) = step_returns(sampler, params, [choice], count=2, purpose="truth")
    np.testing.assert_array_equal(
        returns, [[0.25 + 0.5 * (1 + 0.5 * 2), 0.25 + 0.5 * 0.5], [2.125] * 2]
    )


LETTERS = dataclasses.replace(FAIR, rewards=np.array([1.0, 0.8, 0.4, 0.0]))  # all different


def test_ranking_on_a_chain_whose_values_are_known():
    rng = np.random.default_rng(0)
    episodes, problems = chain_solutions(LETTERS, rng, problems=20)
    simulate = simulation(LETTERS.draw(rng), [])
    sampler, params, _ = sampling(FakeEngine(alternate), config(), problems=problems)
    states = choose_states(episodes, 80, seed=0, with_last=False)
    with mock.patch.object(Sampler, "continuations", simulate):
        found = sample_next_steps(sampler, params, problems, episodes, states)
        choices = found.choices
        assert found.tried == len(choices) + found.few == len(states)
        after = [
            step_returns(sampler, params, choices, count, purpose)
            for count, purpose in [(128, "truth"), (9, "prediction")]
        ]
    means = [returns.mean(axis=1) for returns in after[0]]
    exact = [
        np.array([chain_value(LETTERS, step.tokens) for step in choice.steps]) for choice in choices
    ]
    differences = np.concatenate(means) - np.concatenate(exact)
    assert np.abs(differences).max() < 5 * 0.5 / np.sqrt(128)
    assert abs(differences.mean()) < 4 * 0.5 / np.sqrt(128 * len(differences))
    names = [choice.problem.id for choice in choices]
    predictions = {k: [returns[:, :k].mean(axis=1) for returns in after[1]] for k in (1, 9)}
    scores = {k: ranking_scores(v, exact, names) for k, v in predictions.items()}
    perfect = ranking_scores(exact, exact, names)
    assert perfect.top.value == perfect.ordered.value == 1
    for one in scores.values():
        assert one.chance == perfect.chance and one.states == len(choices)
        assert interval(one.above_chance)[0] > 0
    for few, many, best in [
        (scores[1].top, scores[9].top, perfect.top),
        (scores[1].ordered, scores[9].ordered, perfect.ordered),
    ]:
        assert number(few.value) < number(many.value) < number(best.value)
