"""Allocation rules: the number of continuations of each state."""

from collections import Counter

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.chain_cases import Chain, fill_drawn
from helpers.refusals import refuses
from helpers.vine_cases import PROMPT, RIGHT, WRONG, config, episode, fill

from vinejax.core.settings import ValuesConfig
from vinejax.credit.allocation import Seen, uniform
from vinejax.credit.positions import step_starts
from vinejax.credit.rules import ALLOCATIONS

CHAIN = Chain(
    moves=np.array([[0.5, 0.3, 0.1, 0.1], [0.1, 0.6, 0.2, 0.1], [0.1, 0.1, 0.7, 0.1]] * 2)[:5],
    rewards=np.array([1.0, 0.0, 0.0, 1.0]),
    length=6,
    ending=3,
)


def seen(*returns: list[float], total: float = 0.0, earned: list[float] | None = None) -> Seen:
    return Seen(list(returns), earned or [0.0] * len(returns), total)


def test_uniform_draws_k_at_every_state_at_once():
    before = seen([1.0, 0.0], [], [])
    assert uniform(0, before, ValuesConfig(k=9)) == [9, 9, 9]  # however many samples pass through
    assert uniform(1, before, ValuesConfig(k=9)) is None
    assert uniform(0, seen(), ValuesConfig()) == []


def test_uniform_in_a_whole_vine():
    """Every prefix of a problem's solutions has K continuations, all of them in one wave."""
    rng, k = np.random.default_rng(1), 5
    episodes = CHAIN.episodes(rng, problems=20, group=4)
    draw, log = CHAIN.draw(rng), []

    def logged(wanted):
        log.extend(wanted)
        return draw(wanted)

    filled, drawn_in = fill_drawn(episodes, config(k=k, reuse=True), logged)
    assert drawn_in == [len(log)]
    by_prefix = Counter(map(key_of, log))
    for e in filled:
        for c, (group, _) in enumerate(zip(e.continuations, counts_of(e), strict=True)):
            assert len(group) == by_prefix[e.problem_id, *e.response[:c]] == k


def key_of(state) -> tuple:
    return (state.problem.id, *state.episode.response[: state.used])


def counts_of(e) -> list[int]:
    assert e.value_counts is not None and e.reused is not None
    assert (e.reused >= 0).all()
    assert [len(group) for group in e.continuations] == (e.value_counts - e.reused).tolist()
    return e.value_counts.tolist()


def test_rules_take_solutions_without_states():
    for rule in ALLOCATIONS.values():
        assert not rule(0, seen(), ValuesConfig())


def test_a_rule_without_an_end_is_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vinejax.rollout.vine.find_rule", rules_with([0, 0]))
    with refuses("values.allocation"):
        fill([episode(RIGHT)], config())


def test_a_rule_sees_the_rewards_before_each_state(monkeypatch: pytest.MonkeyPatch):
    """The first of the four steps begins at no state."""
    found = []
    monkeypatch.setitem(ALLOCATIONS, "uniform", lambda wave, now, values: found.append(now))
    one = cases.episode(
        PROMPT,
        [3] * 8,
        problem_id="train/7",
        reward=8.0,
        step_ends=[2, 4, 6, 8],
        step_rewards=[0.5, 1.0, 2.0, 4.0],
        logprobs=[0.0, 0.0, -1.0] * 2 + [-1.0, 0.0],
    )
    fill([one], config(positions="low_probability", every=1))
    assert found == [seen([], [], [], total=15.5, earned=[0.5, 1.5, 3.5])]


def test_a_state_of_several_solutions_gets_the_largest_request(monkeypatch: pytest.MonkeyPatch):
    """In the second wave the last state of each solution alone gets one more continuation.

    All continuations of the first state repeat the first solution, so they pass its other states.
    """

    def rule(wave, now, values):
        count = len(now.returns)
        return [[count] * count, [0] * (count - 1) + [1], None][wave]

    def script(branch, k):
        return "".join(WRONG) if branch.position == len(PROMPT) else "\n#### 5", "eos"

    monkeypatch.setitem(ALLOCATIONS, "uniform", rule)
    cfg = config(reuse=True, credit={"labels": "group"})
    (long, short), _ = fill([episode(WRONG), episode(RIGHT)], cfg, script)
    assert [len(group) for group in long.continuations] == [4, 4, 4, 5]
    assert [len(group) for group in short.continuations] == [4, 3]
    assert counts_of(long) == [4 + 1, 4 + 4, 4 + 4, 5 + 4] and counts_of(short) == [4 + 1, 3]
    for one in (long, short):  # the other solution passes up to the token by which it leaves
        assert one.passing is not None
        shared = len(cases.encode("\n2+3="))
        passed = one.passing.position[one.passing.is_solution]
        assert passed.tolist() == [*range(shared + 1)]


def rules_with(counts: list[int]):
    return lambda field, cfg: step_starts if "positions" in field else lambda *_: counts
