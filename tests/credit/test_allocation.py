"""How many continuations each state gets: uniform, and in waves."""

import itertools
from collections import Counter

import numpy as np
import pytest
from helpers.chain_cases import Chain, fill_drawn
from helpers.vine_cases import RIGHT, config, episode, fill

from vinejax.core.errors import ConfigError
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
    assert uniform(0, before, ValuesConfig(k=9)) == [9, 9, 9]  # whatever passes through
    assert uniform(1, before, ValuesConfig(k=9)) is None
    assert uniform(0, seen(), ValuesConfig()) == []


@pytest.mark.parametrize("waves", [2, 3, 5])
def test_waves_draw_what_is_missing(waves: int):
    rng, values = np.random.default_rng(waves), ValuesConfig(k=4, waves=waves, reuse=True)
    for num_states in range(9):
        drawn = [0] * num_states
        for wave in range(waves):
            returns = [[0.5] * n for n in rng.integers(0, 8, num_states)]
            found = uniform(wave, seen(*returns), values)
            assert found is not None
            for c, (n, passing) in enumerate(zip(found, returns, strict=True)):
                assert n == (max(0, 4 - len(passing)) if c % waves == wave else 0)
                drawn[c] += c % waves == wave
        assert drawn == [1] * num_states and uniform(waves, seen(), values) is None


def test_the_wave_of_a_state_does_not_depend_on_what_follows():
    """Or how often a state is sampled would: its mean would not be V."""
    values = ValuesConfig(k=4, waves=3, reuse=True)
    for wave in range(3):
        rows = [uniform(wave, seen(*[[0.0]] * n), values) for n in range(1, 12)]
        longest = rows[-1]
        assert longest is not None
        assert all(row == longest[:n] for n, row in enumerate(rows, start=1))


@pytest.mark.parametrize("waves", [1, 2, 4])
def test_waves_of_a_whole_vine(waves: int):
    """Each state draws exactly K less the samples of earlier waves that pass through it."""
    rng, k = np.random.default_rng(waves), 5
    episodes = CHAIN.episodes(rng, problems=20, group=4)
    draw, log = CHAIN.draw(rng), []

    def logged(wanted):
        drawn = draw(wanted)
        log.append([(s, x.tokens.tolist()) for s, x in zip(wanted, drawn, strict=True)])
        return drawn

    filled, drawn_in = fill_drawn(episodes, config(k=k, waves=waves, reuse=True), logged)
    assert len(drawn_in) == waves
    by_prefix = Counter(key_of(state) for of_wave in log for state, _ in of_wave)
    for e in filled:
        for c, (group, _) in enumerate(zip(e.continuations, counts_of(e), strict=True)):
            prefix, wave = e.response[:c], c % waves
            solutions = [x for x in episodes if x.problem_id == e.problem_id]
            passing = sum(x.response[:c] == prefix for x in solutions) - 1
            for state, tokens in itertools.chain(*log[:wave]):
                is_of_problem = state.problem.id == e.problem_id
                passing += is_of_problem and state.used <= c and tokens[:c] == prefix
            missing = k if waves == 1 else max(0, k - passing)
            assert len(group) == by_prefix[e.problem_id, *prefix] == missing
    assert sum(drawn_in) == by_prefix.total()


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
    with pytest.raises(ConfigError, match="values.allocation = .* wants more than 1000 waves"):
        fill([episode(RIGHT)], config())


def rules_with(counts: list[int]):
    return lambda field, cfg: step_starts if "positions" in field else lambda *_: counts
