"""A vine as an SVG figure: places, marks and texts are those of the episode."""

import json
import pathlib
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from helpers.tools.fake_run import sample_episode
from helpers.tools.report_cases import row

from vinejax.core.errors import UserError
from vinejax.records import formats
from vinejax.tools.report.figure import STEM, export_vine, vine_svg

SVG = "{http://www.w3.org/2000/svg}"


def figure(workdir: pathlib.Path, *episodes: dict[str, Any], name: str = "s3-0") -> ET.Element:
    (workdir / "episodes").mkdir()
    lines = "".join(json.dumps(episode) + "\n" for episode in episodes)
    (workdir / "episodes/3.jsonl").write_text(lines)
    return ET.fromstring(vine_svg(workdir, name))


def said(svg: ET.Element) -> list[str]:
    return [element.text or "" for element in svg.iter(f"{SVG}text")]


def test_a_figure_has_the_numbers_of_its_vine(tmp_path: pathlib.Path):
    episode = sample_episode(3, 2, 0.4, 9)
    svg = figure(tmp_path, sample_episode(3, 0, 0.4, 9), episode, name="s3-1")
    assert svg[0].text == f"{episode['problem_id']}, s3-1"
    steps, words = episode["steps"], said(svg)
    for step in steps:
        advantage = formats.two_decimals(step["advantage"], signed=True)
        assert any(word.startswith(f"A {advantage} ± ") for word in words)
        assert f"V {step['value']:.2f} ± {step['error']:.2f}" in words
        assert step["text"].strip() in words
    assert episode["question"] in words and f"gold: {episode['answer']}" in words
    circles = list(svg.iter(f"{SVG}circle"))
    dots = [c for c in circles if c.get("r") == "3"]
    assert len(dots) == 9 * len(steps)
    correct = sum(leaf["reward"] for step in steps for leaf in step["continuations"])
    assert 0 < sum(c.get("fill") != "#fff" for c in dots) == correct < len(dots)
    nodes = [float(c.get("cx", "")) for c in circles if c.get("r") == "4"]
    width = STEM[1] - STEM[0]
    assert nodes == pytest.approx([STEM[0] + width * s["value"] for s in steps], abs=0.11)
    height = float(svg.get("height", ""))
    assert all(0 < float(c.get("cy", "")) < height for c in circles)


def test_what_a_model_wrote_stays_text(tmp_path: pathlib.Path):
    hostile = "</text><script>alert(1)</script>&'\""
    steps = [{"text": hostile, "value": 0.5, "advantage": -0.5}, {"text": "x" * 2000, "value": 0.0}]
    svg = figure(tmp_path, row(steps, question=hostile + "\x00", answer=f"work\n#### {hostile}"))
    assert not list(svg.iter(f"{SVG}script"))
    assert said(svg)[:2] == [hostile + "␀", f"gold: #### {hostile}"] and hostile in said(svg)[2:]
    assert "work" not in said(svg) and sum(len(word) for word in said(svg)) < 1000


def test_methods_without_values_have_no_stem(tmp_path: pathlib.Path):
    svg = figure(tmp_path, row([{"text": "a", "advantage": 0.5}, {"text": "b", "advantage": 0.5}]))
    assert "V(s)" not in said(svg) and "A +0.50" in said(svg)
    assert not [c for c in svg.iter(f"{SVG}circle") if c.get("r") == "4"]


def test_a_missing_solution_is_one_line(tmp_path: pathlib.Path):
    figure(tmp_path, sample_episode(3, 0, 0.4, 9))
    for name, rule in (
        ("s3-1", "no line 1 .from 0. in .*3.jsonl: it has 1"),
        ("s4-0", "no line 0 .from 0. in .*4.jsonl: there is no such file"),
        ("../x", "is no solution; the report links to each by a name like s24-17"),
    ):
        with pytest.raises(UserError, match=rule):
            export_vine(tmp_path, name)
    assert not (tmp_path / "vines").exists()
    assert pathlib.Path(export_vine(tmp_path, "s3-0")) == tmp_path / "vines/s3-0.svg"
