"""Charts along the response: the iterations that they show, and the places of their points."""

import random

from helpers.tools.fake_run import sample_metrics

from vinejax.records.read import Record
from vinejax.tools.report.x_axes import charts_along


def records(iterations: int) -> list[Record]:
    lines = sample_metrics(iterations, random.Random(0))
    return [
        Record("train", line["iteration"], {k: v for k, v in line.items() if isinstance(v, float)})
        for line in lines
        if line["stage"] == "train"
    ]


def test_first_middle_and_last_iteration_by_eighth():
    trained = records(9)
    entropy, *others = charts_along(trained)
    assert [curve.label for curve in entropy.drawn_curves] == [
        "iteration 0",
        "iteration 4",
        "iteration 8",
    ]
    assert [len(curve.dots) for curve in entropy.drawn_curves] == [8, 8, 8]
    last = trained[-1].values
    heights = [y for _, y in entropy.drawn_curves[-1].dots]
    values = [last[f"by_eighth/entropy/{n}"] for n in range(1, 9)]
    assert heights == [entropy.frame.y(value) for value in values]
    assert len(others) == 3


def test_what_no_chart_can_be_made_of():
    assert charts_along(records(2)) == []
    without = [record._replace(values={"actor/kl": 0.1}) for record in records(5)]
    assert charts_along(without) == []
    some = [r._replace(values={"by_eighth/clip_frac/8": 0.5}) for r in records(5)]
    (chart,) = charts_along(some)
    assert chart.spec.title == "Clip fraction along the response"
