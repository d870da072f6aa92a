"""Tests the metrics of an iteration's values against figures computed by hand."""

import dataclasses

import numpy as np
import pytest

from vinejax.core.types import Episode
from vinejax.session.metrics import value_metrics


def episode(values: list[float], counts: list[int], errors: list[float]) -> Episode:
    return Episode(
        problem_id="a",
        prompt=[1],
        response=[2] * len(values),
        logprobs=[0.0] * len(values),
        text="",
        finished=True,
        reward=1.0,
        step_ends=list(range(1, len(values) + 1)),
        values=np.array(values, np.float32),
        is_state=np.array(counts) > 0,
        value_counts=np.array(counts, np.int32),
        value_errors=np.array(errors, np.float32),
        reused=np.zeros(len(values), np.int32),
    )


def test_states_without_samples_have_no_part():
    """Two of three are sampled; of the last step only the start has an error."""
    given = episode([0.25, 0.75, 9.0], [1, 3, 0], [0.3, 0.4, 0.0])
    found = value_metrics([given], np.array([[0.5, 0.25, 0.0]], np.float32))
    assert found["values/mean"] == pytest.approx(0.5)
    assert found["values/error"] == pytest.approx(0.35)
    assert found["values/advantage_error"] == pytest.approx((0.5 + 0.4 + 0.0) / 3)
    assert found["values/sign_certain"] == 0


def test_steps_between_two_sampled_states_share_the_error_of_their_difference():
    """Bisection samples s_0 and s_2 of four states; each advantage is half of a difference.

    Without samples at s_1 and s_3 no advantage is more certain than the difference of which it is a
    part: 0.2 at errors of 0.3 and 0.4, and then 0.3 at an error of 0.4.
    """
    given = episode([0.5, 0.6, 0.7, 0.85], [2, 0, 2, 0], [0.3, 0.0, 0.4, 0.0])
    given = dataclasses.replace(given, is_state=np.ones(4, bool))
    found = value_metrics([given], np.array([[0.1, 0.1, 0.15, 0.15]], np.float32))
    assert found["values/advantage_error"] == pytest.approx((0.25 + 0.2) / 2)
    assert found["values/sign_certain"] == 0


def test_a_discount_makes_the_later_value_and_its_error_smaller():
    given = dataclasses.replace(episode([0.5, 1.0], [1, 1], [0.3, 0.8]), is_state=None)
    found = value_metrics([given], np.zeros((1, 2), np.float32), gamma=0.5)
    assert found["values/advantage_error"] == pytest.approx((0.5 + 0.8) / 2)


def test_an_advantage_of_0_before_the_first_state_has_no_error():
    given = episode([0.5, 0.5], [0, 1], [0.0, 0.4])
    found = value_metrics([given], np.array([[0.0, 0.5]], np.float32))
    assert found["values/advantage_error"] == pytest.approx(0.2)
    assert found["values/sign_certain"] == 0


def test_no_error_is_said_where_none_is_known():
    """With one return per state an error of 0 would make every advantage certain."""
    given = episode([1.0, 0.0], [1, 1], [np.nan, np.nan])
    found = value_metrics([given], np.array([[-1.0, 1.0]], np.float32))
    assert found["values/mean"] == 0.5 and np.isfinite(list(found.values())).all()
    assert not found.keys() & {"values/error", "values/advantage_error", "values/sign_certain"}


def test_nothing_is_said_where_no_state_was_sampled():
    given = episode([0.0, 0.0], [0, 0], [0.0, 0.0])
    assert value_metrics([given], np.zeros((1, 2), np.float32)) == {}


def test_values_explain_the_returns_of_their_solutions():
    """With γ = ½, an outcome of 1 and a step reward of ½ the returns are 1.5 and, before, 0.75."""
    right = dataclasses.replace(
        episode([0.75, 1.5], [1, 1], [0.0, 0.0]), step_rewards=[0.0, 0.5], reward=1.0
    )
    wrong = dataclasses.replace(episode([0.5, 0.0], [1, 0], [0.0, 0.0]), reward=0.0)
    returns, values = np.array([0.75, 1.5, 0.0]), np.array([0.75, 1.5, 0.5])
    found = value_metrics([right, wrong], np.zeros((2, 2), np.float32), gamma=0.5)
    expected = 1 - np.var(returns - values) / np.var(returns)
    assert found["values/explained_variance"] == pytest.approx(expected)
    alone = value_metrics([wrong], np.zeros((1, 2), np.float32))
    assert "values/explained_variance" not in alone and alone["values/mean"] == 0.5
