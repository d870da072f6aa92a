"""The example of docs/credit.md, "A rule of your own", trains as it is printed."""

import re
from pathlib import Path

import pytest
from helpers import loop_cases as cases
from helpers.paths import REPO

from vinejax.credit.rules import find_rule
from vinejax.training.loop import train


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The example's code, importable as `myrules`."""
    text = (REPO / "docs/credit.md").read_text(encoding="utf-8").partition("A rule of your own")[2]
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    (tmp_path / "myrules.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return code


@pytest.mark.slow
def test_it_runs(source: str, tmp_path: Path):
    assert len(source.splitlines()) <= 40
    cfg = cases.config(values={"positions": "myrules.before_equals", "k": 2}, iterations=1)
    assert find_rule("values.positions", cfg).__name__ == "before_equals"
    train(cfg, tmp_path / "run")
    rows = cases.read_lines(tmp_path / "run/episodes/0.jsonl")
    steps = [step["text"] for row in rows for step in row["steps"]]
    later = [text for text in steps if "=" in text]
    assert later and all(text.count("=") <= 1 for text in steps)
