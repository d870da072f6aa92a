"""Solutions of several turns that branch off others: what they share, and where they begin."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from helpers import hosts
from helpers import turn_cases as cases
from helpers.contrib.turn_trees import grown, rule

from vinejax.contrib.methods import aepo, arpo
from vinejax.contrib.methods.aepo import AEPOConfig
from vinejax.contrib.methods.sampling.turn_trees import TurnPlace, entropies
from vinejax.core.types import Episode, Turn
from vinejax.rollout.play import Play
from vinejax.rollout.turns import TurnSampler


def shared(one: Episode, other: Episode) -> int:
    """Turns that two episodes share."""
    pairs = zip(one.turns, other.turns, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), 0)


def test_branches_have_all_that_was_said_before_and_a_copy_of_the_environment():
    found = grown(rule(2))
    cfg = cases.config()
    for (problem, _), episodes in zip(cases.problems(2), found, strict=True):
        parents = 0
        for n, episode in enumerate(episodes):
            env = cases.environment(cfg, problem)
            for turn in episode.turns:
                assert env.step(turn.action)[:2] == (turn.observation, turn.reward)
            assert episode.finished and episode.step_ends[-1] == len(episode.response)
            same = [
                other
                for other in episodes[:n]
                if (k := shared(episode, other))
                and other.logprobs[: (end := other.turns[k - 1].end)] == episode.logprobs[:end]
            ]
            parents += bool(same)
        assert parents >= 2
        assert len({tuple(e.response) for e in episodes}) > 3


def test_fork_and_replay_order_and_hosts_change_nothing(monkeypatch: pytest.MonkeyPatch):
    first = grown(rule(2))
    assert grown(rule(2), cases.Unsure(backwards=True)) == first
    assert grown(rule(2), task=cases.WithoutFork()) == without_keys(first)
    monkeypatch.setattr(TurnSampler, "_feed", lambda self, turns: None)
    assert grown(rule(2), cases.Unsure(backwards=True)) == first


def without_keys(found: list[list[Episode]]) -> list[list[Episode]]:
    def plain(turn: Turn) -> Turn:
        return turn._replace(key=None)

    return [[dataclasses.replace(e, turns=tuple(map(plain, e.turns))) for e in x] for x in found]


def test_where_solutions_begin():
    """One begins at the prompt, all others branch off it; or they begin there once it is over."""
    for episodes in grown(rule(1, lambda place, rng: 9)):
        assert all(episode.turns[0] == episodes[0].turns[0] for episode in episodes)
    plain = cases.sampled(cases.config(rollout={"prompts": 2, "per_prompt": 6}), cases.Unsure())
    assert [e for x in grown(rule(1, lambda place, rng: 0)) for e in x] == plain


def test_what_the_rule_is_told():
    """Entropies of the turns so far, the solutions, and for how many waves there were branches."""
    seen: list[TurnPlace] = []

    def branches(place: TurnPlace, rng: np.random.Generator) -> int:
        seen.append(place)
        return int(len(place.entropies) < 3)

    episodes, _ = grown(rule(1, branches), per_prompt=3)
    mine = seen[: len(seen) // 2] if seen[0].solutions == 1 else []
    by_length = [(len(p.entropies), p.solutions, p.streak) for p in seen if len(p.entropies) < 4]
    assert by_length[:2] == [(1, 1, 0)] * 2  # a wave of both problems
    assert (2, 2, 1) in by_length and (3, 3, 2) in by_length
    assert mine
    first = episodes[0].logprobs[: episodes[0].turns[0].drawn]
    expected = -np.mean(first) / math.log(cases.loop_cases.model().cfg.vocab_size)
    assert seen[0].entropies == pytest.approx([expected])


def test_entropy_is_that_of_a_turns_first_tokens():
    turns = [Turn(3, 5, "", "", 0.0, None), Turn(6, 6, "", "", 0.0, None)]
    play: Any = Play.__new__(Play)
    play.turns, play.logprobs = turns, [-1.0, -2.0, -6.0, 0.0, 0.0, -4.0]
    assert entropies(play, 2, 8) == pytest.approx([1.5 / math.log(8), 4 / math.log(8)])
    assert entropies(play, 9, 8) == pytest.approx([3 / math.log(8), 4 / math.log(8)])


@pytest.mark.parametrize(
    ("u", "now", "first", "expected", "branches"),
    [(0.55, 0.5, 0.2, 0.4, True), (0.55, 0.2, 0.2, 0.55, False), (0.9, 0.9, 0.1, 0.5, True)],
)
def test_arpo_branches_as_its_authors_code(
    u: float, now: float, first: float, expected: float, branches: bool
):
    assert arpo.score(u, now, first, 0.5) == pytest.approx(expected)
    growth = arpo.growth(cases.config(method="arpo", values=PLAIN))
    drawn = Draws(u)
    assert growth.branches(TurnPlace([first, 0.9, now], 2, 1), drawn) == branches
    assert growth.roots([]) == 2 and growth.roots([[now]]) == 3  # of 3


class Draws(np.random.Generator):
    """A generator that draws this number."""

    def __init__(self, u: float):
        super().__init__(np.random.PCG64(0))
        self.u = u

    def random(self, size: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return np.full(size, self.u)


PLAIN = {"k": 9, "max_states": None, "positions": "method"}


def test_aepo_divides_the_budget_and_avoids_branches_in_a_row():
    assert 8 * aepo.share_from_prompt(1.2, 0.8, beta=1.0) == pytest.approx(4.789501, abs=1e-6)
    own: dict[str, Any] = {"beta": 1.0, "penalty": 0.25, "weight": 0.5, "branches": 2}
    rollout = {"rollout": {"per_prompt": 8}}
    growth = aepo.growth(cases.config(method="aepo", values=PLAIN, aepo=own, **rollout))
    assert growth.roots([]) == 1 and growth.roots([[], []]) == 8
    assert growth.roots([[1.2, 0.7, 0.9]]) == 4 and growth.roots([[1.2]]) == 4
    assert growth.roots([[1.2, 9.0]]) == 0  # beside the first, which nothing branches off
    place, drawn = TurnPlace([0.2, 0.6], 2, 0), Draws(0.4)
    scores = [aepo.score(0.4, 0.4, streak, AEPOConfig(**own)) for streak in range(5)]
    assert scores == pytest.approx([0.6, 0.45, 0.3, 0.15, 0.0])
    found = [growth.branches(place._replace(streak=s), drawn) for s in range(3)]
    assert found == [2, 0, 0]
    assert growth.branches(place._replace(solutions=1), drawn) == 0


@pytest.mark.parametrize(("name", "growth"), [("arpo", arpo.growth), ("aepo", aepo.growth)])
def test_some_solutions_of_the_methods_branch_off(name: str, growth: Any):
    cfg = cases.config(method=name, values=PLAIN, rollout={"per_prompt": 6})
    found = grown(growth(cfg))
    firsts = [[e.logprobs[: e.turns[0].drawn] for e in episodes] for episodes in found]
    assert any(rows.count(row) > 1 for rows in firsts for row in rows)
    assert all(len({tuple(e.response) for e in episodes}) > 2 for episodes in found)


HOST = """
import jax
from helpers import turn_cases as cases
from helpers.contrib.turn_trees import grown, rule
from vinejax.core.settings import DistributedConfig
from vinejax.runtime import distributed

distributed.initialize(DistributedConfig())
engine = cases.Unsure(backwards=jax.process_index() == 1)
print([x.tokens for of_problem in grown(rule(2), engine) for x in of_problem])
"""


@pytest.mark.slow
def test_branches_of_several_hosts_are_those_of_one():
    """They begin in environments of all hosts."""
    alone = [x.tokens for of_problem in grown(rule(2)) for x in of_problem]
    assert hosts.last_lines(2, HOST) == [str(alone)] * 2
