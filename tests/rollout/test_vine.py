"""Values: the states, the continuations of each, and the advantages that follow."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.applied import fill_values, sample_episodes
from helpers.vine_cases import (
    MAX_TOKENS,
    PROBLEM,
    PROMPT,
    RIGHT,
    WRONG,
    FakeEngine,
    Task,
    boundaries,
    config,
    credit_by_step,
    episode,
    fill,
    rewards_of,
    values_of,
)

from vinejax.core.settings import RewardConfig
from vinejax.core.types import Episode, Problem
from vinejax.engine.branches import Branch
from vinejax.engine.engine import Engine


def test_every_state_but_the_terminal_one_is_sampled_from():
    episodes = [episode(RIGHT), episode(WRONG, reward=0.0), episode(("\n#### 4",))]
    filled, engine = fill(episodes, config())
    assert engine.trunks == [e.tokens for e in episodes]
    # The rollouts of a prompt share s_0, so only the first has branches there.
    first, second, _ = (boundaries(e) for e in episodes)
    assert engine.states() == [(0, first[0]), (0, first[1])] + [(1, p) for p in second[1:]]
    assert len(engine.branches) == 4 * (2 + 3)
    for e in filled:
        assert e.value_counts is not None and e.value_counts.tolist() == [4] * len(e.step_ends)
        assert [len(group) for group in e.continuations] == [4] * len(e.step_ends)
    assert filled[2].continuations[0] is filled[0].continuations[0]


def test_values_are_means_and_advantages_telescope():
    episodes = [episode(RIGHT), episode(WRONG, reward=0.0), episode(("\n#### 4",), reward=0.5)]
    filled, _ = fill(episodes, config())
    for e in filled:
        means = [np.mean([c.reward for c in group]) for group in e.continuations]
        np.testing.assert_array_equal(values_of(e), means)
        # `alternate` by hand: of k = 0 .. 3 those with 5 k < position are right.
        expected = [min(4, -(-position // 5)) / 4 for position in boundaries(e)]
        np.testing.assert_array_equal(values_of(e), expected)
    assert np.unique(np.concatenate([values_of(e) for e in filled])).size > 1
    cfg = cases.config(ppo={"whiten": "none"})
    advantages = credit_by_step(filled, cfg)
    for row, e in zip(advantages, filled, strict=False):
        np.testing.assert_allclose(row.sum(), e.reward - values_of(e)[0], atol=1e-6)
    assert np.abs(advantages).max() > 0.1


@pytest.mark.parametrize("max_states", [0, 1, 2, 3, 9])
def test_states_past_max_states_get_no_advantage(max_states):
    one = dataclasses.replace(episode((*RIGHT, *WRONG)), reward=0.75)
    num_steps = len(one.step_ends)
    (filled,), engine = fill([one], config(max_states=max_states))
    sampled = min(max_states + 1, num_steps)  # s_0 and the first `max_states` step ends
    assert [position for _, position in engine.states()] == boundaries(one)[:sampled]
    assert filled.value_counts is not None
    assert filled.value_counts.tolist() == [4] * sampled + [0] * (num_steps - sampled)
    assert [len(c) for c in filled.continuations] == filled.value_counts.tolist()
    assert (values_of(filled)[sampled:] == 0.75).all()
    advantages = credit_by_step([filled], cases.config())
    if sampled < num_steps:  # the step after the last sampled state gets the remaining credit
        last = values_of(filled)[sampled - 1]
        np.testing.assert_allclose(advantages[0, sampled - 1], 0.75 - last)
    assert not advantages[0, sampled:].any()


def test_back_filled_states_get_no_advantage_with_a_discount_either():
    cfg = cases.config(values={"max_states": 0}, ppo={"gamma": 0.5, "whiten": "none"})
    (filled,), _ = fill([episode(WRONG, reward=1.0)], cfg)
    np.testing.assert_allclose(values_of(filled)[1:], [0.25, 0.5, 1.0])
    advantages = credit_by_step([filled], cfg)
    assert not advantages[0, 1:].any() and advantages[0, 0] != 0


@pytest.mark.parametrize("max_states", [1, None])
def test_solutions_that_are_always_right_have_no_advantage_with_a_discount(max_states):
    """A continuation's outcome belongs to its last step, and earlier steps discount it."""
    steps = ("\n2+3=5", "\n5-1=4", "\n4-0=4", "\n4+0=4\n#### 4")
    one = episode(steps)

    def rest(branch: Branch, k: int) -> tuple[str, str]:
        return one.text[branch.position - len(PROMPT) :], "eos"

    values = {"k": 4, "max_states": max_states}
    cfg = cases.config(values=values, ppo={"gamma": 0.9, "whiten": "none"})
    (filled,), _ = fill([one], cfg, rest)
    np.testing.assert_allclose(values_of(filled), [0.9**3, 0.9**2, 0.9, 1.0], rtol=1e-6)
    advantages = credit_by_step([filled], cfg)
    np.testing.assert_allclose(advantages, 0.0, atol=1e-6)


def test_a_longer_way_to_the_answer_is_worth_less_with_a_discount():
    """The continuation's steps count, not the episode's; a step across the state counts whole."""
    cfg = cases.config(values={"k": 3, "max_states": 0}, ppo={"gamma": 0.5, "whiten": "none"})
    texts = ["\n#### 4", "\n2+3=5\n#### 4", "\n2+3=5\n5-1=4\n4-0=4\n#### 4"]
    (filled,), _ = fill([episode(RIGHT)], cfg, lambda branch, k: (texts[k], "eos"))
    assert [c.reward for c in filled.continuations[0]] == [1.0, 1.0, 0.25]


def test_without_a_discount_no_continuation_is_split(monkeypatch):
    def refuse(task: Task, text: str) -> list[int]:
        raise AssertionError("split")

    one = episode(RIGHT)
    monkeypatch.setattr(Task, "split", refuse)
    (filled,), _ = fill([one], config())
    assert values_of(filled).size == 2


def test_equal_prefixes_are_one_state():
    other_end = (RIGHT[0], "\n5-1=5\n#### 5")
    episodes = [episode(RIGHT), episode(other_end, reward=0.0), episode(WRONG, reward=0.0)]
    filled, engine = fill(episodes, config())
    assert len(engine.states()) == 2 + 0 + 3
    assert filled[1].continuations == filled[0].continuations
    np.testing.assert_array_equal(values_of(filled[1]), values_of(filled[0]))

    alone, engine = fill(episodes, config(dedup=False, credit={"labels": "group"}))
    assert len(engine.states()) == 2 + 2 + 4 and len(engine.branches) == 4 * 8
    assert len({branch.seed for branch in engine.branches}) == 4 * 8
    for e, f in zip(alone, filled, strict=True):
        np.testing.assert_array_equal(values_of(e), values_of(f))  # the script answers alike
        assert e.passing is not None  # own continuations repeat a newline, and leave after it
        assert len(e.passing.position) == 2 * 4 * len(e.step_ends)


def test_solutions_of_several_problems_keep_their_own_states():
    """Trunk i has i + 1 right continuations of four; a problem grades its own.

    The prefill of trunk i gives its token t the log-probability -(t + i / 8).
    """

    class Scoring(FakeEngine):
        @property
        def scores_as_learner(self) -> bool:
            return True

        def _scripted(self):
            yield from super()._scripted()
            return [-np.arange(len(x), dtype=np.float32) - i / 8 for i, x in enumerate(self.trunks)]

    class Two(Task):
        def reward(self, problem: Problem, response: str) -> float:
            return self.rule(response) * {"train/7": 1.0, "train/8": 0.5}[problem.id]

    texts = RIGHT, WRONG, (*RIGHT[:1], "\n5-1=5\n#### 5"), WRONG[1:]
    episodes = [
        dataclasses.replace(episode(text), problem_id=f"train/{7 + i % 2}")
        for i, text in enumerate(texts)
    ]
    answers = "\n#### 4", "\n#### 5"
    engine = Scoring(lambda branch, k: (answers[k > branch.trunk], "eos"))
    problems = [PROBLEM, (dataclasses.replace(PROBLEM[0], id="train/8"), PROMPT)]
    cfg = config(dedup=False)
    filled = fill_values(engine, {}, rewards_of(Two()), problems, episodes, cfg)
    assert [one.response for one in filled] == [one.response for one in episodes]
    for i, one in enumerate(filled):
        assert values_of(one).tolist() == [(i + 1) / 4 * (0.5 if i % 2 else 1.0)] * len(texts[i])
        assert one.scored == [-(t + i / 8) for t in range(len(PROMPT), len(one.tokens))]


def test_no_state_is_before_the_first_position():
    """Continuations and where they leave belong to the steps that begin at states."""
    one = episode(RIGHT)
    logprobs = [math.log(0.5) if t in (2, 5, 9) else 0.0 for t in range(len(one.response))]
    one = dataclasses.replace(one, logprobs=logprobs)
    values = {"positions": "low_probability", "every": 1, "max_states": 1}
    (filled,), engine = fill([one], config(credit={"labels": "group"}, **values))
    assert engine.states() == [(0, len(PROMPT) + 2)]
    assert filled.step_ends == [2, 5, 9, len(one.response)]
    assert filled.value_counts is not None and filled.value_counts.tolist() == [0, 4, 0, 0]
    assert [len(group) for group in filled.continuations] == [0, 4, 0, 0]
    assert [len(group) for group in filled.departures] == [0, 4, 0, 0]


def with_given_step(one: Episode) -> Episode:
    """The episode as if its first step had been given."""
    return dataclasses.replace(one, given=one.step_ends[0], step_ends=one.step_ends[1:])


def test_states_after_given_tokens_begin_at_their_end():
    one = with_given_step(episode(WRONG, reward=0.0))
    (filled,), engine = fill([one], config(max_states=1))
    used = [one.given, one.step_ends[0]]
    assert engine.states() == [(0, len(PROMPT) + n) for n in used]
    assert values_of(filled).tolist() == [0.75, 1.0, 0.0]
    assert filled.value_counts is not None and filled.value_counts.tolist() == [4, 4, 0]


def test_a_solution_counts_for_its_siblings_after_its_given_tokens():
    """Its return there is discounted by its own steps; all continuations fail."""
    whole = episode(WRONG)
    part = dataclasses.replace(with_given_step(whole), penalty=0.5)
    values = {"k": 1, "max_states": None, "reuse": True}
    cfg = cases.config(values=values, ppo={"gamma": 0.5, "whiten": "none"})
    filled, _ = fill([whole, part], cfg, lambda *_: ("\n#### 5", "eos"))
    reused = [one.reused.tolist() for one in filled if one.reused is not None]
    assert reused == [[0, 1, 1, 1], [1, 1, 1]]
    found = [values_of(one).tolist() for one in filled]
    assert found == [[0.0, 0.0625, 0.125, 0.25], [0.125, 0.25, 0.5]]


def test_budgets():
    one = episode(WRONG, reward=0.0)
    for budget, used in (("left", [0, *one.step_ends[:-1]]), ("fresh", [0] * len(one.step_ends))):
        _, engine = fill([one], config(budget=budget))
        assert engine.budgets == [MAX_TOKENS - n for n in used for _ in range(4)]


def test_no_two_branches_share_a_seed():
    class Sampler(FakeEngine):
        def stream(self, *args, **settings):
            stream = super().stream(*args, **settings)
            seeds.extend(branch.seed for branch in self.branches)
            return stream

    seeds: list[int] = []
    engine = Sampler(lambda branch, k: ("".join((RIGHT, WRONG)[k % 2]), "eos"))
    cfg = cases.config(values={"max_states": None, "dedup": False})
    for iteration in (3, 4):
        episodes = sample_episodes(engine, {}, rewards_of(Task()), [PROBLEM], cfg, iteration)
        assert len(episodes) == 3
        fill_values(engine, {}, rewards_of(Task()), [PROBLEM], episodes, cfg, iteration)
    assert len(seeds) > 40 and len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_a_continuation_is_graded_as_the_whole_solution():
    task = Task(lambda text: float(text.startswith("\n2+3=5") and text.endswith("#### 4")))
    (filled,), _ = fill([episode(RIGHT)], config(), lambda branch, k: ("\n#### 4", "eos"), task)
    assert set(task.graded) == {"\n#### 4", "\n2+3=5\n#### 4"}
    assert values_of(filled).tolist() == [0.0, 1.0]
    assert filled.continuations[1][0].text == "\n#### 4"


def test_no_graded_continuation_has_a_stop_string_that_began_before_its_state(tiny, monkeypatch):
    """The policy would have ended there, so no value covers what comes after."""
    monkeypatch.setattr(Task, "split", lambda _, text: list(range(len(text) + 1)))  # letters
    stop = ("-3", "#2")
    cfg = cases.config(
        values={"k": 4, "max_states": None}, sample={"max_tokens": MAX_TOKENS, "stop": stop}
    )
    settings: dict[str, Any] = {"slots": 8, "skip_repeats": False}
    engine, task = Engine(tiny.decoder, cfg.sample, tiny.tokenizer, **settings), Task()
    episodes = sample_episodes(engine, tiny.params, rewards_of(task), [PROBLEM], cfg, 3)
    fill_values(engine, tiny.params, rewards_of(task), [PROBLEM], episodes, cfg, 3)
    assert len(task.graded) > 50
    assert not [text for text in task.graded if any(s in text for s in stop)]


def test_truncated_continuations_get_their_own_reward():
    cfg = dataclasses.replace(config(), reward=RewardConfig(truncated=-0.5))
    task = Task(lambda text: 0.75)
    finishes = ("eos", "length", "stop", "length")

    def script(branch: Branch, k: int) -> tuple[str, str]:
        return "\n#### 4", finishes[k]

    (filled,), _ = fill([episode(RIGHT)], cfg, script, task)
    assert [c.finish for c in filled.continuations[0]] == list(finishes)
    assert [c.reward for c in filled.continuations[0]] == [0.75, -0.5, 0.75, -0.5]
    assert values_of(filled).tolist() == [0.125, 0.125]


def test_float_rewards_stay_fractional():
    task = Task(lambda text: 0.75)
    (filled,), _ = fill([episode(RIGHT, reward=0.75)], config(), task=task)
    assert values_of(filled).tolist() == [0.75, 0.75]
    advantages = credit_by_step([filled], cases.config())
    assert not advantages.any()


def test_empty_responses_have_no_states():
    empty = cases.episode(PROMPT, [], problem_id=PROBLEM[0].id, finished=False)
    filled, engine = fill([empty, episode(RIGHT), empty], config())
    assert {trunk for trunk, _ in engine.states()} == {1} and len(engine.states()) == 2
    for e in (filled[0], filled[2]):
        assert values_of(e).shape == (0,) and e.continuations == ()
    only, engine = fill([empty], config())
    assert engine.branches == [] and values_of(only[0]).shape == (0,)


def test_sampled_episodes_carry_what_was_drawn():
    texts = ["".join(RIGHT), "".join(WRONG), "\n2+3="]
    engine = FakeEngine(lambda branch, k: (texts[k], "length" if k == 2 else "eos"))
    rewards = rewards_of(Task(lambda text: 0.75))
    found = sample_episodes(engine, {}, rewards, [PROBLEM], cases.config(), 0)
    assert {branch.response for branch in engine.branches} == {None}  # rows have prompts only
    assert engine.states() == [(0, len(PROMPT))] and engine.trunks == [PROMPT]
    expected = [episode(RIGHT), episode(WRONG), episode(("\n2+3=",), "length")]
    for e, by_hand in zip(found, expected, strict=True):
        assert (e.problem_id, e.prompt, e.response) == ("train/7", PROMPT, by_hand.response)
        assert e.logprobs == [-1.0] * len(e.response) and e.text == by_hand.text
    assert [e.reward for e in found] == [0.75, 0.75, 0.0]
    assert [e.finished for e in found] == [True, True, False]
    assert found[0].step_ends == expected[0].step_ends and found[2].step_ends == [5]


class Batched(Task):
    """A task that is graded in batches, and remembers them."""

    def rewards(self, items, grader) -> list[float]:
        self.graded.append([response for _, response in items])
        return [self.rule(response) for _, response in items]


def test_each_phase_is_graded_as_one_batch():
    """A batch has all responses that the budget did not cut, in the order of drawing."""
    texts = ["".join(RIGHT), "".join(WRONG), "\n2+3="]
    task, cfg = Batched(), config()
    engine = FakeEngine(lambda branch, k: (texts[k % 3], "length" if k % 3 == 2 else "eos"))
    with rewards_of(task) as rewards:
        found = sample_episodes(engine, {}, rewards, [PROBLEM], cfg, 0)
        assert task.graded == [texts[:2]] and [e.reward for e in found] == [1.0, 0.0, 0.0]
        filled = fill_values(engine, {}, rewards, [PROBLEM], found, cfg, 0)
    _, batch = task.graded
    assert len(batch) == 3 * len(engine.states()) > 9  # one of four continuations is cut
    kept = [c for e in filled for group in e.continuations for c in group if c.finish != "length"]
    assert {c.reward for c in kept} == {0.0, 1.0}
    assert all(c.reward == float("#### 4" in c.text) for c in kept)
