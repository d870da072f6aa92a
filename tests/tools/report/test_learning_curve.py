"""Learning curves: the totals of a run at each evaluation, and the accuracy in between."""

import pytest

from vinejax.records.read import Record
from vinejax.tools.report.learning_curve import EvaluationPoint, accuracy_at, learning_curve


def test_an_evaluation_has_the_totals_of_the_iterations_before_it():
    first = {"total/episodes": 16.0, "total/tokens": 300.0, "total/updates": 2.0}
    first |= {"timing_s/total_rollout": 1.5, "timing_s/total_train": 0.5, "timing_s/rollout": 1.5}
    accuracy = {"eval/pass_at_1": 0.5, "eval/pass_at_1_low": 0.4, "eval/pass_at_1_high": 0.6}
    records = [
        Record("eval", 0, {"eval/pass_at_1": 0.25}),
        Record("eval", 1, accuracy),
        Record("eval", 2, {"timing_s/eval": 1.0}),  # without an accuracy
        Record("eval", 7, accuracy),  # after iterations that are not in the log
        Record("test", 1, {"test/pass_at_1": 0.9}),
        Record("train", 0, first),
        Record("train", 1, first),
    ]
    assert learning_curve(records) == [
        EvaluationPoint(0, 0.25, 0.25, 0.25, 0.0, 0.0, 0.0, 0.0),
        EvaluationPoint(1, 0.5, 0.4, 0.6, 16.0, 300.0, 2.0, 2.0),
    ]


def test_accuracy_is_linear_between_evaluations():
    x, accuracy = [0.0, 10.0, 10.0, 30.0], [0.2, 0.4, 0.6, 1.0]
    assert [accuracy_at(x, accuracy, at) for at in (0, 5, 20, 30)] == pytest.approx(
        [0.2, 0.3, 0.8, 1.0]
    )
    assert accuracy_at([4.0], [0.5], 4.0) == 0.5
    for at in (-1, 31):
        with pytest.raises(ValueError, match="no evaluations around"):
            accuracy_at(x, accuracy, at)
    with pytest.raises(ValueError):
        accuracy_at([], [], 0.0)
