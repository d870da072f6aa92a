"""The weights of solutions and continuations that are trained on together, and their rows."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from helpers.chain_cases import CHAIN, NUM_LETTERS, fill_drawn
from helpers.vine_cases import PROMPT, RIGHT, WRONG, config, episode, fill, values_of

from vinejax.config.checks import check_config
from vinejax.config.load import from_dict
from vinejax.core.errors import ConfigError
from vinejax.core.settings import TrainConfig
from vinejax.credit.shares import SampledState, shares
from vinejax.engine.branches import Branch


def test_worked_numbers():
    # One solution with three states; no continuation of the second counts.
    states = [SampledState(4 * c, [(0, c)], n) for c, n in enumerate((3, 0, 1))]
    of_states, after = shares(states, [3])
    assert of_states == [1 / 4, 1 / 4, 1 / 8] and after == [[1 / 4, 1 / 4, 1 / 8]]
    # Two solutions share the first state; one goes on to a state of its own.
    states = [SampledState(5, [(1, 1)], 2), SampledState(0, [(0, 0), (1, 0)], 2)]
    of_states, after = shares(states, [1, 2])
    assert of_states == [pytest.approx(1 / 6), 1 / 2]
    assert after == [[1 / 2], [1 / 2, pytest.approx(1 / 6)]]


def test_the_weights_beyond_a_state_add_up_to_what_reaches_it():
    rng = np.random.default_rng(0)
    for _ in range(50):
        draws = rng.integers(0, 5, size=rng.integers(1, 8))
        states = [SampledState(3 * c, [(0, c)], int(m)) for c, m in enumerate(draws)]
        of_states, (after,) = shares(states, [len(states)])
        # At the end of all tokens: the solution, and every continuation of every state.
        total = after[-1] + sum(w * m for w, m in zip(of_states, draws, strict=True))
        assert total == pytest.approx(1.0)


def continuing(**values: Any):
    return dataclasses.replace(config(**values), train=TrainConfig(on="continuations"))


def one_more_step(branch: Branch, k: int) -> tuple[str, str]:
    """Two of four continuations are right, and all begin with a step of their own."""
    return ("\n5-1=4\n#### 4" if k % 2 else "\n5-1=3\n#### 5"), "eos"


def test_every_continuation_becomes_a_row():
    episodes = [episode(RIGHT), episode(WRONG, reward=0.0)]
    rows, _ = fill(episodes, continuing(k=4), one_more_step)
    plain, _ = fill(episodes, config(k=4), one_more_step)
    solutions, others = rows[:2], rows[2:]
    states = len(plain[0].continuations) + len(plain[1].continuations) - 1  # s_0 is shared
    assert len(others) == 4 * states
    for row, solution in zip(solutions, plain, strict=True):
        np.testing.assert_array_equal(values_of(row), values_of(solution))
        assert row.weights is not None and len(row.weights) == len(row.step_ends)
        # Two solutions and four continuations share s_0; then one and four, all with a line break.
        expected = [2 / 6 / 5**c for c in range(len(row.step_ends))]
        np.testing.assert_allclose(row.weights, expected)
    by_start: dict[tuple[int, ...], list[Any]] = {}
    for row in others:
        assert row.prompt == PROMPT and row.step_ends == [len(row.response)]
        assert row.logprobs[: row.given] == [0.0] * row.given
        assert len(row.logprobs) == len(row.response)
        by_start.setdefault(tuple(row.response[: row.given]), []).append(row)
    for group in by_start.values():
        returns = [row.reward for row in group]
        assert len(group) == 4 and {row.weights[0] for row in group} == {group[0].weights[0]}
        for row in group:  # the mean of the others
            np.testing.assert_allclose(values_of(row), [(sum(returns) - row.reward) / 3])


def test_a_continuation_counts_if_its_state_is_one_of_its_own():
    """A step ends before a line break: what goes on in the same line has no state there."""

    def in_the_same_line(branch: Branch, k: int) -> tuple[str, str]:
        return ("1" if k == 0 else one_more_step(branch, k)[0]), "eos"

    rows, _ = fill([episode(RIGHT)], continuing(k=4), in_the_same_line)
    solution, *others = rows
    second = solution.step_ends[0]
    assert solution.weights == [1 / 5, 1 / 5 / 4]  # of s_0 all five go on, of s_1 four
    assert [row.given for row in others] == [0] * 4 + [second] * 3
    assert [row.weights for row in others] == [[1 / 5]] * 4 + [[1 / 5 / 4]] * 3
    # The baseline is of all four, whether they have the state or not; returns are 0, 1, 0, 1.
    baselines = [values_of(row)[0] for row in others[4:]]
    np.testing.assert_allclose(baselines, [1 / 3, 2 / 3, 1 / 3], rtol=1e-6)


def test_one_continuation_alone_has_nothing_to_be_compared_with():
    rows, _ = fill([episode(RIGHT)], continuing(k=1))
    assert len(rows) == 1 and rows[0].weights == [1.0, 1.0]


RULES: dict[str, dict[str, Any]] = {
    "every step": {},
    "waves": {"reuse": True, "waves": 2},
    "merge": {"merge": 2},
    "max_states": {"max_states": 1},
    "no dedup": {"dedup": False},
    "a rule that looks ahead": {"positions": "helpers.chain_cases.before_ones"},
}


@pytest.mark.parametrize("rule", RULES)
def test_tokens_are_trained_on_as_often_as_the_policy_draws_them(rule: str):
    """Of the weighted tokens at a place each letter has its chance, within 4 standard errors."""
    rng, problems, group = np.random.default_rng(0), 600, 2
    chain, cfg = CHAIN, continuing(**({"k": 3} | RULES[rule]))
    rows, _ = fill_drawn(chain.episodes(rng, problems, group), cfg, chain.draw(rng))
    found = np.zeros((problems, chain.length, NUM_LETTERS))
    for row in rows:
        assert row.weights is not None
        lengths = np.diff([row.given, *row.step_ends])
        weights = np.repeat(row.weights, lengths.tolist())
        places = np.arange(row.given, len(row.response))
        letters = np.array(row.response[row.given :])
        np.add.at(found[int(row.problem_id)], (places, letters), weights / group)
    error = found.std(axis=0) / np.sqrt(problems)
    assert len(rows) > 2 * problems * group and error.max() < 0.02
    difference = np.abs(found.mean(axis=0) - chain.frequencies())
    assert (difference <= 4 * error + 1e-9).all()


def test_an_empty_solution_has_no_weights():
    empty = dataclasses.replace(episode(RIGHT), response=[], logprobs=[], step_ends=[], text="")
    rows, _ = fill([empty, episode(RIGHT)], continuing(), one_more_step)
    assert rows[0].weights == [] and len(rows) == 2 + 4 * 2


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"values": {"budget": "fresh"}}, "values.budget", "must be 'left'"),
        ({"values": {"allocation": "bisection"}}, "values.allocation", "must be 'uniform'"),
        ({"ppo": {"gamma": 0.9}}, "ppo.gamma", "must be 1 for train.on = 'continuations'"),
        ({"ppo": {"reduction": "budget"}}, "ppo.reduction", "must be 'token'"),
        ({"kl": {"reduction": "sequence"}}, "kl.reduction", "'policy' or 'token'"),
        ({"credit": {"progress": 1.0}}, "credit.progress", "must be 0"),
        ({"method": "grpo"}, "train.on", "'vineppo' or 'spo_chain' alone"),
    ],
)
def test_what_does_not_go_with_it_is_refused(fields: dict[str, Any], field: str, message: str):
    with pytest.raises(ConfigError) as error:
        check_config(from_dict({"train": {"on": "continuations"}} | fields))
    assert error.value.field == field
    assert message in str(error.value) and "\n" not in str(error.value)
