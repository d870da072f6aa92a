"""Allocation rules: the number of continuations of each state."""

from collections import Counter

import numpy as np
import pytest
from helpers.chain_cases import Chain, fill_drawn
from helpers.refusals import refuses
from helpers.vine_cases import RIGHT, config, episode, fill

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


def rules_with(counts: list[int]):
    return lambda field, cfg: step_starts if "positions" in field else lambda *_: counts
