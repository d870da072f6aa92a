"""Workdirs to make reports of, and pages as a browser would see them, for tests/analysis."""

import html.parser
import json
import pathlib
import re
from typing import Any

from vinejax.analysis.report import build_report

VOID = {"meta", "input", "path", "circle", "rect", "br"}


class Page(html.parser.HTMLParser):
    """Tags, attributes and visible text of a page, as a browser would see them."""

    def __init__(self, source: str):
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, "the page is well nested"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))


def write(
    workdir: pathlib.Path,
    metrics: list[dict[str, Any]] | str = "",
    episodes: dict[int, list[dict[str, Any]]] | None = None,
    config: dict[str, Any] | None = None,
) -> str:
    """The page of a workdir with these files."""
    if not isinstance(metrics, str):
        metrics = "".join(json.dumps(line) + "\n" for line in metrics)
    (workdir / "metrics.jsonl").write_text(metrics, encoding="utf-8")
    (workdir / "episodes").mkdir()
    for iteration, found in (episodes or {}).items():
        lines = "".join(json.dumps(episode) + "\n" for episode in found)
        (workdir / f"episodes/{iteration}.jsonl").write_text(lines, encoding="utf-8")
    if config is not None:
        (workdir / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return pathlib.Path(build_report(workdir)).read_text(encoding="utf-8")


def row(steps: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """An episode of these steps, each with the V of the next one after it."""
    after = [step.get("value") for step in steps[1:]] + [0.0]
    plain: dict[str, Any] = {"text": "", "value": None, "advantage": None, "continuations": []}
    around: list[dict[str, Any]] = [
        plain | {"count": 0, "value_after": v} | s for s, v in zip(steps, after, strict=True)
    ]
    known = {"problem_id": "p", "question": "q", "reward": 1.0, "finished": True}
    return known | {"response": "".join(s["text"] for s in around), "steps": around} | fields


def nodes(source: str) -> list[float]:
    """Positions of the nodes of all stems, in percent of the axis."""
    return [float(x) for x in re.findall(r'class="node" style="left:([\d.]+)%', source)]
