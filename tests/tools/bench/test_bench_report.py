"""The report of a run shows the record that the credit bench writes."""

import pathlib

import numpy as np
import pytest
from etils import epath
from helpers import loop_cases as cases
from helpers.tools.report_cases import Page

from vinejax.records.read import read_run
from vinejax.tools.bench.bench_mode import write_result
from vinejax.tools.bench.estimators import ESTIMATORS
from vinejax.tools.bench.gradients import GradientError
from vinejax.tools.bench.intervals import Measure
from vinejax.tools.bench.measure import MeasuredRepeats, MeasuredSolutions
from vinejax.tools.bench.price import Price
from vinejax.tools.bench.ranking import ranking_scores
from vinejax.tools.bench.reference import Reference
from vinejax.tools.bench.results import BenchResult, ResultRow, rows_of
from vinejax.tools.bench.value_error import truth_of, value_scores
from vinejax.tools.report.bench import COLUMNS, COSTS, MEANINGS, bench_view


def result() -> BenchResult:
    measure = Measure(0.5, 0.25, 0.75)
    truth = truth_of([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    values = value_scores([0.25, 1.0, 0.0], truth, [0.0, 0.5, 0.9], ["p", "q", "r"])
    gradient = GradientError(measure, measure, measure, bias=0.125, repeats=2)
    row = ResultRow(gradient, 16.0, 0.0625, measure, measure, measure, values, measure)
    ranking = ranking_scores([[0.5, 1.0], [0.0, 1.0]], [[0.25, 1.0], [1.0, 0.5]], ["p", "q"])
    rows = {"rloo": row, "exact": row}
    price, ranked = Price(0.001, 0.003), {"tried": 2.0, "margin": 0.25}
    return BenchResult("the start", 2, 4, 0.5, 100, 0.25, price, rows, {"K = 1": ranking}, ranked)


def test_report_shows_all_that_the_bench_wrote(tmp_path, capsys):
    workdir = epath.Path(tmp_path)
    (workdir / "metrics.jsonl").write_text("")
    write_result(result(), workdir)
    assert f"report: {workdir / 'report.html'}" in capsys.readouterr().out
    page = Page(pathlib.Path(tmp_path / "report.html").read_text(encoding="utf-8")).text
    view = bench_view(read_run(workdir).bench)
    assert view is not None
    assert all(cell.value != "–" for row in view.table for cell in row.cells)
    assert all((view.facts | {"fewer": "-"}).values()) and len(view.panels) == 1 + len(COSTS)
    assert len(view.calibrations) == 2 and len(view.ranking) == 2 and view.ranking_note
    assert all(column.title in page for column in COLUMNS)
    assert all(MEANINGS[name] in page for name in ("rloo", "exact"))


def test_costs_by_hand():
    """The cost per solution of sampling, values, policy and critic; errors over RLOO's."""
    names = {"rloo": 4.0, "ppo": 8.0}  # |ĝ|², of a batch of two solutions
    repeats = {
        name: MeasuredRepeats(
            [0, 0],
            [9.0, 0.5],
            [x, x],
            [2.0, 2.0],
            gradient_sum={"w": np.ones(2)},
            trained=[0, 0] if name == "rloo" else [8, 12],
        )
        for name, x in names.items()
    }
    repeats["ppo"].tokens = [6, 10]
    solutions = MeasuredSolutions(
        [cases.episode([0], [1])] * 2, tokens=16.0, seconds=1.0, trained_tokens=10.0
    )
    reference = Reference({}, product=2.0, error=0.0, solutions=4, reward=0.5)
    price = Price(sampled=0.0625, trained=0.125)
    rows = rows_of(repeats, solutions, reference, price, {}, {"ppo": 0.5})
    # The first repeat, which compiles, does not count.
    assert rows["rloo"].seconds == 1.0 + 0.5 / 2 + 10 * 0.125 == 2.5
    assert rows["ppo"].seconds == 3.0 + 5 * 0.125
    assert (rows["rloo"].tokens, rows["ppo"].tokens) == (16.0, 20.0)
    # Errors |ĝ|²·|g|² / (ĝ·g)² - 1 are 1 and 3.
    costs = [rows["ppo"].error_ratio, rows["ppo"].token_cost, rows["ppo"].second_cost]
    expected = [3.0, 3 * 20 / 16, 3 * 3.625 / 2.5]
    assert [cost and cost.value for cost in costs] == pytest.approx(expected)
    at_prices = {price: cost.value for price, cost in rows["ppo"].price_costs.items()}
    expected_at = {x: 3 * (15 + x * 20) / (10 + x * 16) for x in (0.05, 0.14, 0.4)}
    assert at_prices == pytest.approx(expected_at)


def test_workdir_without_a_run_gets_no_report(tmp_path, capsys):
    write_result(result(), epath.Path(tmp_path))
    assert "report:" not in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["credit"]


def test_every_estimator_is_explained():
    assert list(MEANINGS) == list(ESTIMATORS)
