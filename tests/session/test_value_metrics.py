"""Tests the metrics of an iteration's values against figures computed by hand."""

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


def test_nothing_is_said_where_no_state_was_sampled():
    given = episode([0.0, 0.0], [0, 0], [0.0, 0.0])
    assert value_metrics([given], np.zeros((1, 2), np.float32)) == {}
