"""A comparison in the report of a run: the same figures as on its own page, from compare.json."""

import copy
import json
import pathlib
import random
import re
from typing import Any

import pytest
from helpers.tools.report_cases import Page, compared_run

from vinejax.tools.report.build import build_report
from vinejax.tools.report.compare.page import compare_runs
from vinejax.tools.report.comparison import MAX_TEXT, TITLES, comparison_view
from vinejax.tools.report.learning_curve import AXES

SECTION = "Comparison: "


@pytest.fixture(scope="module")
def workdirs(tmp_path_factory: pytest.TempPathFactory) -> list[pathlib.Path]:
    root = tmp_path_factory.mktemp("runs")
    return [
        compared_run(root / "vine_1", 0.6, method="vineppo", seed=1, rewards={"p": [1.0, 0.0]}),
        compared_run(root / "vine_2", 0.7, method="vineppo", seed=2),
        compared_run(root / "grpo", 0.5, method="grpo", rewards={"p": [0.0, 0.0]}),
    ]


@pytest.fixture(scope="module")
def record(workdirs, tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("elsewhere")
    compare_runs([str(workdir) for workdir in workdirs], folder)
    assert not (folder / "report.html").exists(), "the folder is no run's workdir"
    return json.loads((folder / "compare.json").read_text(encoding="utf-8"))


def report_with(folder: pathlib.Path, content: Any) -> Page:
    """The report of a workdir with this compare.json, which is text or becomes JSON."""
    compared_run(folder, 0.6)
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "compare.json").write_text(text, encoding="utf-8")
    return Page(pathlib.Path(build_report(folder)).read_text(encoding="utf-8"))


def test_the_report_has_the_figures_of_the_page(tmp_path, workdirs, capsys):
    own = compared_run(tmp_path / "own", 0.65, method="rloo")
    assert "compare.json" not in Page(pathlib.Path(build_report(own)).read_text("utf-8")).text
    page = compare_runs([str(own), *map(str, workdirs)], own)
    said = capsys.readouterr().out.splitlines()
    assert said[3:] == [f"compared: {page}", f"report: {own / 'report.html'}"]
    assert said[0] == (
        "own against vine, 2 seeds, test, at the ends of the runs: 0.550 and"
        " 0.550 [0.500, 0.600], P(first is better) 0.50 [0.08, 0.92]"
    )
    assert [line.partition(",")[0] for line in said[1:3]] == ["own against grpo", "vine"]
    assert all(re.search(r"P\(first is better\) [01]\.\d\d \[.*\]$", line) for line in said[:3])
    source, report = page.read_text(), (own / "report.html").read_text("utf-8")
    compared = report.partition(f'section">{SECTION}')[2]
    for tag, count in (("figure", len(AXES)), ("table", 2 + 3)):  # two tables and three pairs
        found = [re.findall(rf"<{tag}.*?</{tag}>", x, re.S) for x in (source, compared)]
        assert found[0] == found[1] and len(found[0]) == count
    text = Page(report).text
    assert f"{SECTION}own · vine, 2 seeds · grpo" in text
    assert "4 runs of vinejax.tasks.arithmetic side by side" in text
    assert "episodes/, config.json and compare.json" in text
    assert source.count("<h2") == 4 and '<h3 class="section">Two by two</h3>' in report
    # Every later report shows it, too, and without it the page is as it was.
    assert pathlib.Path(build_report(own)).read_text("utf-8") == report
    (own / "compare.json").unlink()
    assert SECTION not in pathlib.Path(build_report(own)).read_text("utf-8")


def test_the_record_says_what_was_compared(record):
    assert record["task"] == "vinejax.tasks.arithmetic" and record["runs"] == 3
    assert [group["label"] for group in record["groups"]] == ["vine, 2 seeds", "grpo"]
    vine, grpo = record["groups"]
    assert grpo["curves"]["episodes"][-1] == pytest.approx([64, 0.5, 0.45, 0.55])
    assert vine["totals"]["iteration"] == 4 and vine["validation"]["value"] == pytest.approx(0.65)
    (pair,) = record["pairs"]
    assert [row["axis"] for row in pair["rows"]] == [*AXES, "test"]
    # One run of GRPO: no interval of the difference over seeds, but one of P, and one over the test
    # problem, 1/2 against 0.
    assert pair["rows"][0]["difference"]["low"] is None
    improvement = pair["rows"][0]["improvement"]
    assert improvement["value"] == improvement["high"] == 1.0 and 0.2 < improvement["low"] < 0.5
    assert pair["paired"]["value"] == 0.5 and not pair["has_other_problems"]
    assert record["settings"] == [["method", ["vineppo", "grpo"]]]
    assert record["unevaluated"] == ["vine_2"]
    assert tuple(TITLES) == AXES


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"groups": []}', '{"groups": 3}', "\x00"]
)
def test_without_a_usable_record_there_is_no_section(tmp_path, content: str):
    page = report_with(tmp_path / "run", content)
    assert SECTION not in page.text and "episodes/ and config.json" in page.text


def test_a_record_that_is_damaged_anywhere_is_left_out_or_shown_whole(record):
    rng = random.Random(0)

    def damaged(tree: Any) -> Any:
        if rng.random() < 0.005:
            return rng.choice([None, "x", [], {}, True, float("nan"), -1e40, 10**400, 0])
        if isinstance(tree, dict):
            return {key: damaged(value) for key, value in tree.items()}
        return [damaged(x) for x in tree] if isinstance(tree, list) else tree

    trees = [damaged(record) for _ in range(60)]
    views = [comparison_view(tree if isinstance(tree, dict) else {}) for tree in trees]
    assert 5 < sum(view is not None for view in views) < 55
    assert not any(re.search(r"\b(nan|inf)\b", repr(view)) for view in views)


def test_texts_of_a_record_are_text(tmp_path, record):
    hostile = copy.deepcopy(record)
    hostile["groups"][0]["label"] = "<script>alert(1)</script>\u202e"
    hostile["settings"][0][1][0] = "x" * 10_000
    page = report_with(tmp_path / "run", hostile)
    assert "script" not in page.tags and "<script>alert(1)</script>⟨U+202E⟩" in page.text
    assert "x" * MAX_TEXT in page.text and "x" * (MAX_TEXT + 1) not in page.text
