"""Where the states of a solution are: every rule on worked examples, thinning, a user's rule."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.refusals import refuses
from helpers.vine_cases import PROMPT, RIGHT, WRONG, config, episode, fill, values_of

from vinejax.config.checks import check_config
from vinejax.core.errors import ConfigError
from vinejax.core.plugins import find_function
from vinejax.core.settings import ValuesConfig
from vinejax.core.types import Episode
from vinejax.credit.positions import (
    after_step_starts,
    blank_lines,
    every_n_tokens,
    low_probability,
    positions_of,
    step_starts,
    thinking_blank_lines,
    turn_starts,
    with_steps_between,
)

TEXTS = {1: "a", 2: "b.", 3: "\n", 4: "\n\n", 5: "c\n\nd", 6: "\n\n\n", 7: "\n e", 8: "f\n", 9: ""}
TAGS = {1: "a", 4: "\n\n", 11: "</think>", 12: "</", 13: "think", 14: ">", 15: ".</thi", 16: "nk>b"}


def response_of(*tokens: int, **fields: Any) -> Episode:
    return cases.episode([cases.BOS], list(tokens), **fields)


def after_blank_lines(*tokens: int) -> list[int]:
    return blank_lines(response_of(*tokens), TEXTS.__getitem__, ValuesConfig())


def test_steps_start_at_the_prompts_end_and_at_every_step_end_but_the_last():
    one = response_of(1, 2, 1, 2, 1, step_ends=[2, 3, 5])
    assert step_starts(one, TEXTS.__getitem__, ValuesConfig()) == [0, 2, 3]


@pytest.mark.parametrize(
    "tokens, expected",
    [
        ([1, 2, 1], [0]),
        ([1, 4, 1], [0, 2]),  # both newlines in one token
        ([1, 3, 3, 2, 1], [0, 3]),  # newlines in two tokens
        ([1, 8, 3, 1, 2], [0, 3]),
        ([1, 8, 7, 1], [0, 3]),  # the second newline is in a token with text after it
        ([1, 3, 2, 3, 1], [0]),  # two lines, neither of them blank
        ([1, 5, 1], [0, 2]),
        ([5, 5, 5, 1], [0, 1, 2, 3]),
        ([1, 3, 3, 3, 3, 1], [0, 3]),  # a run of newlines is one gap
        ([1, 4, 3, 4, 1, 4, 1], [0, 2, 6]),
        ([1, 6, 6, 1], [0, 2]),
        ([1, 8, 6, 1], [0, 3]),
        ([1, 3, 9, 3, 1], [0, 4]),  # a token without text divides nothing
        ([1, 2, 4], [0]),  # the response's end is no state
        ([1, 4, 3], [0, 2]),
        ([4, 1], [0, 1]),
    ],
)
def test_blank_lines(tokens: list[int], expected: list[int]):
    assert after_blank_lines(*tokens) == expected


@pytest.mark.parametrize(
    "tokens, expected",
    [
        ([1, 4, 1, 4, 1], [0, 2, 4]),  # all positions without the tag
        ([1, 4, 11, 4, 1], [0, 2]),
        ([1, 4, 12, 13, 14, 1, 4, 1], [0, 2]),  # the tag in three tokens
        ([1, 4, 15, 16, 4, 1], [0, 2]),  # the tag in two tokens, with other text
        ([12, 13, 4, 14, 4, 1], [0, 3, 5]),  # no tag, because a blank line divides it
        ([11, 1, 4, 1], [0]),
    ],
)
def test_only_the_thinking_is_divided(tokens: list[int], expected: list[int]):
    one = response_of(*tokens)
    assert thinking_blank_lines(one, TAGS.__getitem__, ValuesConfig()) == expected


def test_every_n_tokens():
    for n, length, expected in ((3, 7, [0, 3, 6]), (3, 6, [0, 3]), (9, 4, [0]), (1, 2, [0, 1])):
        one = response_of(*[1] * length)
        assert every_n_tokens(one, TEXTS.__getitem__, ValuesConfig(every=n)) == expected


def test_low_probability():
    p = [0.95, 0.4, 0.99, 0.8, 0.97, 0.5, 0.98, 0.3, 0.99, 0.95]
    one = response_of(*[1] * 10, logprobs=[math.log(x) for x in p])
    for every, below, expected in (
        (1, 0.9, [1, 3, 5, 7]),
        (2, 0.9, [1, 5]),
        (3, 0.9, [1, 7]),
        (1, 0.45, [1, 7]),
        (2, 1.0, [0, 2, 4, 6, 8]),
        (1, 0.2, []),
    ):
        values = ValuesConfig(every=every, below=below)
        found = low_probability(one, TEXTS.__getitem__, values)
        assert found == expected and all(type(x) is int for x in found)
    sure = response_of(1, 1, 1, logprobs=[0.0, math.log(0.5), 0.0])
    assert low_probability(sure, TEXTS.__getitem__, ValuesConfig(every=1, below=1.0)) == [1]


@pytest.mark.parametrize(
    "rule",
    [
        *(step_starts, turn_starts, after_step_starts),
        *(blank_lines, thinking_blank_lines, every_n_tokens, low_probability),
    ],
)
def test_an_empty_response_has_no_position_of_its_own(rule: Any):
    empty = response_of()
    values = ValuesConfig(merge=2, num_states=1)
    found = positions_of(rule, empty, TEXTS.__getitem__, values)
    assert found in ([], [0]) and with_steps_between(empty, found) is empty
    cfg = config(positions={v: k for k, v in RULES.items()}[rule.__name__])
    (filled,), engine = fill([cases.episode(PROMPT, [], problem_id="train/7")], cfg)
    assert engine.branches == [] and values_of(filled).size == 0


RULES = {
    "steps": "step_starts",
    "turns": "turn_starts",
    "after": "after_step_starts",
    "blank_lines": "blank_lines",
    "thinking_blank_lines": "thinking_blank_lines",
    "tokens": "every_n_tokens",
    "low_probability": "low_probability",
}


def thinned(positions: list[int], length: int = 40, **fields: Any) -> list[int]:
    one = response_of(*[1] * length)
    return positions_of(lambda *_: positions, one, TEXTS.__getitem__, ValuesConfig(**fields))


def test_merge_keeps_every_kth_boundary_and_the_prompts_end():
    boundaries = [3, 5, 8, 9, 14, 20, 21]  # boundaries b_1 .. b_7
    assert thinned([0, *boundaries], merge=1) == [0, *boundaries]
    assert thinned([0, *boundaries], merge=2) == [0, 5, 9, 20]
    assert thinned([0, *boundaries], merge=3) == [0, 8, 20]
    assert thinned(boundaries, merge=3) == [8, 20]
    assert thinned([0, *boundaries], merge=8) == [0]


def test_spread_divides_the_response_evenly():
    boundaries = list(range(2, 24, 2))  # 11 boundaries
    assert thinned([0, *boundaries], num_states=3) == [0, 6, 12, 18]  # boundaries number 3, 6 and 9
    assert thinned(boundaries, num_states=3) == [6, 12, 18]
    assert thinned([0, *boundaries], num_states=1) == [0, 12]  # the middle boundary
    for few in ([0], [0, 4], [0, 4, 9, 11], []):
        assert thinned(few, num_states=3) == few
    for n in range(1, 12):
        found = thinned([0, *boundaries], num_states=n)
        gaps = np.diff([*found, 24])
        assert len(found) == n + 1 and gaps.max() - gaps.min() <= 2  # boundaries are 2 apart


def test_merge_comes_before_spread():
    boundaries = list(range(1, 15))
    assert thinned([0, *boundaries], merge=2) == [0, 2, 4, 6, 8, 10, 12, 14]
    assert thinned([0, *boundaries], merge=2, num_states=3) == [0, 4, 8, 12]


def test_rewards_go_to_the_step_in_which_they_end():
    one = response_of(*[1] * 10, step_ends=[2, 4, 7, 10], step_rewards=[1.0, 2.0, 4.0, 8.0])
    for positions, ends, rewards in (
        ([0, 2, 4, 7], [2, 4, 7, 10], [1.0, 2.0, 4.0, 8.0]),
        ([0, 4], [4, 10], [3.0, 12.0]),
        ([0, 5], [5, 10], [3.0, 12.0]),
        ([0, 1, 3, 9], [1, 3, 9, 10], [0.0, 1.0, 6.0, 8.0]),
        ([5], [5, 10], [3.0, 12.0]),
        ([0], [10], [15.0]),
        ([], [10], [15.0]),
    ):
        divided = with_steps_between(one, positions)
        assert (divided.step_ends, divided.step_rewards) == (ends, rewards)
        assert divided.response == one.response and one.step_ends == [2, 4, 7, 10]
    assert with_steps_between(one, [0, 2, 4, 7]) is one
    plain = response_of(*[1] * 4, step_ends=[2, 4])
    assert with_steps_between(plain, [0, 3]).step_rewards is None


RULE = '''"""Positions rules of a user."""


def thirds(episode, text_of, values):
    n = len(episode.response)
    return sorted({0, n // 3, 2 * n // 3} - {n})


def backwards(episode, text_of, values):
    return [3, 1]
'''


@pytest.fixture
def own_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mypositions.py").write_text(RULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mypositions", raising=False)
    find_function.cache_clear()
    yield
    find_function.cache_clear()


def test_a_users_rule_is_named_by_its_path(own_rules: None):
    cfg = config(positions="mypositions.thirds")
    check_config(cfg)
    (one,), engine = fill([episode(WRONG, reward=0.0)], cfg)
    n = len(one.response)
    assert one.step_ends == [n // 3, 2 * n // 3, n] and values_of(one).shape == (3,)
    assert [position - len(PROMPT) for _, position in engine.states()] == [0, n // 3, 2 * n // 3]


def test_a_users_rule_that_goes_backwards_is_refused(own_rules: None):
    with pytest.raises(ConfigError, match=r"mypositions.py:9: gave \[3, 1\]; needed are "):
        fill([episode(RIGHT)], config(positions="mypositions.backwards"))
    with refuses("values.positions"):
        check_config(config(positions="mypositions.nothing"))


def test_states_can_be_every_few_tokens():
    (one,), engine = fill([episode(RIGHT)], config(positions="tokens", every=4))
    assert one.step_ends == [*range(4, len(one.response), 4), len(one.response)]
    used = [position - len(PROMPT) for _, position in engine.states()]
    assert used == [0, *one.step_ends[:-1]] and len(used) == values_of(one).size > 3
