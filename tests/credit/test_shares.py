"""The weights of solutions and continuations that are trained on together, and their rows."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from helpers.vine_cases import PROMPT, RIGHT, WRONG, config, episode, fill, values_of

from vinejax.checks import check_config
from vinejax.config import from_dict
from vinejax.credit.shares import Fork, shares
from vinejax.errors import ConfigError
from vinejax.settings import TrainConfig


def test_worked_numbers():
    # One solution with three states, of which the second is not sampled.
    forks = [Fork(0, [(0, 0)], 3), Fork(4, [(0, 1)], 0), Fork(7, [(0, 2)], 1)]
    of_forks, after = shares(forks, [3])
    assert of_forks == [1 / 4, 1 / 4, 1 / 8] and after == [[1 / 4, 1 / 4, 1 / 8]]
    # Two solutions share the first state; one goes on to a state of its own.
    forks = [Fork(5, [(1, 1)], 2), Fork(0, [(0, 0), (1, 0)], 2)]
    of_forks, after = shares(forks, [1, 2])
    assert of_forks == [pytest.approx(1 / 6), 1 / 2]
    assert after == [[1 / 2], [1 / 2, pytest.approx(1 / 6)]]


def test_the_weights_beyond_a_state_add_up_to_what_reaches_it():
    rng = np.random.default_rng(0)
    for _ in range(50):
        draws = rng.integers(0, 5, size=rng.integers(1, 8))
        forks = [Fork(3 * c, [(0, c)], int(m)) for c, m in enumerate(draws)]
        of_forks, (after,) = shares(forks, [len(forks)])
        # At the end of all tokens: the solution, and every continuation of every state.
        total = after[-1] + sum(w * m for w, m in zip(of_forks, draws, strict=True))
        assert total == pytest.approx(1.0)


def continuing(**values: Any):
    return dataclasses.replace(config(**values), train=TrainConfig(on="continuations"))


def test_every_continuation_becomes_a_row():
    episodes = [episode(RIGHT), episode(WRONG, reward=0.0)]
    rows, _ = fill(episodes, continuing(k=4))
    plain, _ = fill(episodes, config(k=4))
    solutions, others = rows[:2], rows[2:]
    states = len(plain[0].continuations) + len(plain[1].continuations) - 1  # s_0 is shared
    assert len(others) == 4 * states
    for row, solution in zip(solutions, plain, strict=True):
        np.testing.assert_array_equal(values_of(row), values_of(solution))
        assert row.weights is not None and len(row.weights) == len(row.step_ends)
        # Two solutions and four continuations share s_0; then one and four.
        expected = [2 / 6 / 5**c for c in range(len(row.step_ends))]
        np.testing.assert_allclose(row.weights, expected)
    by_start: dict[tuple[int, ...], list[Any]] = {}
    for row in others:
        assert row.prompt == PROMPT and row.step_ends == [len(row.response)]
        assert row.logprobs[: row.given] == [0.0] * row.given
        assert len(row.logprobs) == len(row.response)
        by_start.setdefault(tuple(row.response[: row.given]), []).append(row)
    for start, group in by_start.items():
        passing = [e for e in episodes if tuple(e.response[: len(start)]) == start]
        returns = [e.reward for e in passing] + [row.reward for row in group]
        assert len(group) == 4 and {row.weights[0] for row in group} == {group[0].weights[0]}
        for row in group:  # the mean of the others
            mean = (sum(returns) - row.reward) / (len(returns) - 1)
            np.testing.assert_allclose(values_of(row), [mean], rtol=1e-6)


def test_an_empty_solution_has_no_weights():
    empty = dataclasses.replace(episode(RIGHT), response=[], logprobs=[], step_ends=[], text="")
    rows, _ = fill([empty, episode(RIGHT)], continuing())
    assert rows[0].weights == [] and len(rows) == 2 + 4 * 2


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"values": {"budget": "fresh"}}, "values.budget", "must be 'left'"),
        ({"values": {"allocation": "bisection"}}, "values.allocation", "must be 'uniform'"),
        ({"ppo": {"gamma": 0.9}}, "ppo.gamma", "must be 1 for train.on = 'continuations'"),
        ({"ppo": {"reduction": "budget"}}, "ppo.reduction", "must be 'token'"),
        ({"kl": {"reduction": "sequence"}}, "kl.reduction", "'policy' or 'token'"),
        ({"method": "grpo"}, "train.on", "'vineppo' or 'spo_chain' alone"),
    ],
)
def test_what_does_not_go_with_it_is_refused(fields: dict[str, Any], field: str, message: str):
    with pytest.raises(ConfigError) as error:
        check_config(from_dict({"train": {"on": "continuations"}} | fields))
    assert error.value.field == field
    assert message in str(error.value) and "\n" not in str(error.value)
