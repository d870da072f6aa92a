"""The report's section of the credit bench shows the record's numbers, and survives any damage."""

import json
import math
import random
import re
from typing import Any

import pytest
from helpers.tools.report_cases import Page, bench_record, bench_row, interval, write
from hypothesis import given
from hypothesis import strategies as st

from vinejax.tools.report import axes
from vinejax.tools.report.bench import BenchView, MeasureCell, bench_view, read_measure

SECTION = "Credit bench"


def view_of(record: dict[str, Any]) -> BenchView:
    view = bench_view(record)
    assert view is not None
    return view


def test_page_has_the_numbers_of_the_record(tmp_path):
    page = Page(write(tmp_path, bench=bench_record())).text
    assert SECTION in page and "docs/credit_bench.md" in page
    assert "a fixed policy, checkpoints/25, and nothing was trained" in page
    assert "8 problems with 4 solutions each, in 20 repeats (exact in 4)" in page
    assert "of 2,000 other solutions, with a mean reward of 0.344 and an error of its own" in page
    assert "of 0.0760. The error" in page and "w = 3.75" in page
    assert "vineppo_k9: 0.330 [0.250, 0.500]" in page and "exact: 34 [30, 40]" in page
    cells = "vineppo_k9 0.330 [0.250, 0.500] 0.750 [0.500, 0.875] −0.125 – 16.5 14"
    cells += " 0.250 [0.200, 0.375] −0.062 [−0.125, 0.500] 0.625"
    assert cells.replace(" ", "") in page.replace(" ", "")
    assert "predicted 0.50, true 0.75, 4 states" in page
    assert "K = 1: 0.580 [0.450, 0.780]" in page and "13 states, 3.50 next steps at each" in page
    assert "credit/bench.json" in page


def test_places_and_sides_of_dots():
    errors, seconds, tokens = view_of(bench_record()).panels
    assert errors.line is None and [dot.side for dot in errors.dots] == ["", "", ""]
    assert [dot.side for dot in seconds.dots] == ["", "pos", "neg"] and seconds.dots == tokens.dots
    rloo, vineppo, many = seconds.dots
    assert rloo.x == seconds.line and rloo.low is None, "an interval without width is not drawn"
    assert vineppo.x is not None and rloo.x is not None and many.x is not None
    assert vineppo.x < rloo.x < many.x
    assert vineppo.high is not None and vineppo.high < rloo.x
    assert errors.dots[2].low is None
    span = seconds.scale.high - seconds.scale.low
    expected = 100 * math.log10(34.0 / 0.7) / span
    assert many.x - vineppo.x == pytest.approx(expected, abs=0.02)


def test_ranking_shows_its_chance_level():
    best, ordered = view_of(bench_record()).ranking
    assert [(dot.name, dot.x, dot.chance) for dot in best.dots] == [
        *(("K = 1", 58.0, 32.0), ("critic", 40.0, 32.0))
    ]
    assert [dot.chance for dot in ordered.dots] == [50.0, 50.0]


def test_calibration_of_at_most_three_estimators():
    record = bench_record()
    values = record["rows"]["vineppo_k9"]["values"]
    for name in ("exact", "mine", "ppo", "rloo"):
        record["rows"][name] = bench_row(
            interval(0.5, 0.4, 0.6), interval(1.0, 0.9, 1.1), values=values
        )
    charts = view_of(record).calibrations
    assert [chart.name for chart in charts] == ["ppo", "vineppo_k9", "rloo"]
    frame, dots = charts[0].frame, charts[0].dots
    assert [(x, y) for x, y, _, _ in dots] == [
        *((frame.x(0.0), frame.y(0.25)), (frame.x(0.5), frame.y(0.75)))
    ]
    assert dots[0][2] == 2 * dots[1][2], "the area is the number of states"


def test_errors_that_a_logarithm_does_not_have(tmp_path):
    record = bench_record()
    record["rows"]["rloo"]["gradient"]["error"] = interval(-0.01, -0.1, 0.5)
    record["rows"]["exact"]["gradient"]["error"] = interval(None, None, None)
    below, drawn, unknown = view_of(record).panels[0].dots
    assert below.is_below and below.x is None and below.low == 0 and drawn.x is not None
    assert (unknown.value, unknown.x, unknown.is_below) == ("–", None, False)
    assert "not above 0" in Page(write(tmp_path, bench=record)).text


def test_one_wide_interval_does_not_squeeze_the_dots():
    record = bench_record()
    record["rows"]["rloo"]["gradient"]["error"] = interval(0.66, 1e-20, 1e20)
    panel = view_of(record).panels[0]
    assert panel.scale.high - panel.scale.low < 3
    assert (panel.dots[0].low, panel.dots[0].high) == (
        pytest.approx(2.5, abs=3),
        pytest.approx(97.5, abs=3),
    )


def test_an_interval_without_an_upper_end_is_drawn_to_the_edge(tmp_path):
    record = bench_record()
    row = record["rows"]["exact"]
    row["second_cost"] = interval(3.0, 2.0, None)
    record["rows"]["vineppo_k9"]["second_cost"] = interval(0.9, 0.8, None)
    row["gradient"]["error"] = interval(0.5, 0.25, None)
    _, seconds, _ = view_of(record).panels
    _, even, dearer = seconds.dots
    assert (dearer.interval, dearer.side) == ("[2, ∞]", "neg") and even.side == ""
    assert dearer.low is not None and dearer.high is not None and dearer.high > 95
    assert "[0.250, ∞]" in Page(write(tmp_path, bench=record)).text


def test_record_without_the_baseline_has_no_costs(tmp_path):
    record = bench_record()
    for row in record["rows"].values():
        row |= {"second_cost": None, "token_cost": None}
    page = Page(write(tmp_path, bench=record)).text
    assert (
        "Error of the policy gradient" in page and "Cost in" not in page and "cheaper" not in page
    )


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", "{}", '{"rows": 3}', '{"rows": {"rloo": {}}}', '{"rows": {"a": [1]}}']
    + ['{"rows": {"a": {"gradient": {"error": {"value": NaN}}, "tokens": 1e999}}}', "\x00\ufffd"],
)
def test_damaged_record_leaves_the_section_out(tmp_path, content: str):
    source = write(tmp_path, bench=content)
    assert SECTION not in Page(source).text and "episodes/ and config.json" in source


def test_missing_and_partly_written_records(tmp_path):
    (tmp_path / "without").mkdir()
    assert SECTION not in Page(write(tmp_path / "without")).text
    (tmp_path / "cut").mkdir()
    cut = json.dumps(bench_record())[:-40]
    assert SECTION not in Page(write(tmp_path / "cut", bench=cut)).text
    (tmp_path / "sparse").mkdir()
    sparse = {"rows": {"rloo": {"tokens": 16.5, "gradient": {"error": float("inf")}}}}
    page = Page(write(tmp_path / "sparse", bench=sparse)).text
    assert SECTION in page and "16.5" in page and "Calibration" not in page and "inf" not in page


def test_names_of_a_record_are_text(tmp_path):
    hostile = "<script>alert(1)</script>\"'{{ 7 * 7 }}\u202e"
    record = bench_record()
    record["policy"] = hostile
    record["rows"][hostile] = record["rows"]["vineppo_k9"]
    record["ranking"][hostile] = record["ranking"]["critic"]
    page = Page(write(tmp_path, bench=record))
    assert "script" not in page.tags and "onerror" not in page.attributes
    assert page.text.count("<script>alert(1)</script>") >= 6 and "⟨U+202E⟩" in page.text


def test_any_damage_of_a_value_is_survived(tmp_path):
    rng = random.Random(0)

    def damaged(tree: Any) -> Any:
        if rng.random() < 0.08:
            return rng.choice([None, "x", [], {}, True, float("nan"), -1e40, 10**400, -3.0, 0])
        if isinstance(tree, dict):
            return {key: damaged(value) for key, value in tree.items()}
        return [damaged(x) for x in tree] if isinstance(tree, list) else tree

    trees = [damaged(bench_record()) for _ in range(300)]
    views = [bench_view(tree if isinstance(tree, dict) else {}) for tree in trees]
    assert sum(view is not None for view in views) > 200
    assert not any(re.search(r"\b(nan|inf)\b", repr(view)) for view in views)
    for i in range(6):
        (tmp_path / str(i)).mkdir()
        page = Page(write(tmp_path / str(i), bench=trees[i])).text
        assert not re.search(r"\b(nan|inf|None)\b", page)


@pytest.mark.parametrize(
    ("raw", "measure"),
    [
        (0.5, MeasureCell(0.5)),
        ({"value": 0.5, "low": 0.25, "high": 1}, MeasureCell(0.5, 0.25, 1.0)),
        ({"value": 0.5, "low": 0.25, "high": None}, MeasureCell(0.5, 0.25, math.inf)),
        ({"value": 0.5, "low": 0.25, "high": "x"}, MeasureCell(0.5)),
        ({"value": 0.5, "low": 0.25}, MeasureCell(0.5)),
        ({"value": 0.5, "low": None, "high": 1.0}, MeasureCell(0.5)),
        ({"value": 0.5, "low": 0.5, "high": 0.5 + 1e-12}, MeasureCell(0.5)),
        ({"value": 0.5, "low": 0.6, "high": 0.4}, MeasureCell(0.5)),
        ({"value": None, "low": 0.5, "high": 1.0}, None),
        ("0.5", None),
    ],
)
def test_measures_are_read_leniently(raw: Any, measure: MeasureCell | None):
    assert read_measure(raw) == measure


@given(st.lists(st.floats(1e-29, 1e29), min_size=1))
def test_log_scale_holds_any_data(values: list[float]):
    scale = axes.fit_log_scale(values)
    places = [scale.place(v) for v in sorted(values)]
    assert places == sorted(places) and 0 < places[0] and places[-1] < 100
    ticks = [place for place, _ in scale.ticks]
    assert 2 <= len(ticks) <= axes.MAX_TICKS and ticks == sorted(set(ticks))
    assert scale.place(0.0) == scale.place(-1.0) == 0.0


def test_log_scale_has_round_ticks():
    assert [label for _, label in axes.fit_log_scale([0.44, 1.85]).ticks] == ["0.5", "1", "2"]
    assert [label for _, label in axes.fit_log_scale([1.0, 108.0]).ticks] == [
        *("1", "2", "5", "10", "20", "50", "100")
    ]
    assert [label for _, label in axes.fit_log_scale([0.7]).ticks] == ["0.5", "1"]
    assert [label for _, label in axes.fit_log_scale([0.1, 1e4]).ticks] == [
        *("0.1", "1", "10", "100", "1,000", "10,000")
    ]
