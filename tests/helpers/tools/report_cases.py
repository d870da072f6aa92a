"""Workdirs to make reports of, and pages as a browser would see them, for tests/tools/report."""

import html.parser
import json
import pathlib
import re
from typing import Any

from vinejax.tools.report.build import build_report

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
    bench: dict[str, Any] | str | None = None,
) -> str:
    """The page of a workdir with these files; `bench` is the record of the credit bench."""
    if not isinstance(metrics, str):
        metrics = "".join(json.dumps(line) + "\n" for line in metrics)
    (workdir / "metrics.jsonl").write_text(metrics, encoding="utf-8")
    (workdir / "episodes").mkdir()
    for iteration, found in (episodes or {}).items():
        lines = "".join(json.dumps(episode) + "\n" for episode in found)
        (workdir / f"episodes/{iteration}.jsonl").write_text(lines, encoding="utf-8")
    if config is not None:
        (workdir / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if bench is not None:
        (workdir / "credit").mkdir()
        content = bench if isinstance(bench, str) else json.dumps(bench)
        (workdir / "credit/bench.json").write_text(content, encoding="utf-8")
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


def interval(value: float | None, low: float | None, high: float | None) -> dict[str, float | None]:
    """A measure as the credit bench writes it."""
    return {"value": value, "low": low, "high": high}


def bench_row(
    error: dict[str, float | None],
    cost: dict[str, float | None],
    repeats: int = 20,
    **fields: Any,
) -> dict[str, Any]:
    """An estimator of a record, without values; its costs in seconds and in tokens are equal."""
    gradient = {
        "error": error,
        "cosine": interval(0.75, 0.5, 0.875),
        "bias": -0.125,
        "repeats": repeats,
    }
    known = {"gradient": gradient, "tokens": 16.5, "seconds": 0.014}
    return known | {"second_cost": cost, "token_cost": cost, "values": None} | fields


def bench_record() -> dict[str, Any]:
    """A small record of the credit bench: three estimators, of which one has values."""
    empty = {"low": 0.9, "high": 1.0, "states": 0, "prediction": None, "truth": None}
    values = {
        "mae": interval(0.25, 0.2, 0.375),
        "bias": interval(-0.0625, -0.125, 0.5),
        "rank_correlation": interval(0.625, None, None),
        "calibration": [
            {"low": 0.0, "high": 0.1, "states": 16, "prediction": 0.0, "truth": 0.25},
            {"low": 0.5, "high": 0.6, "states": 4, "prediction": 0.5, "truth": 0.75},
            empty,
        ],
    }
    scores = {"states": 13, "alternatives": 3.5, "top": interval(0.58, 0.45, 0.78)}
    scores |= {"chance": interval(0.32, 0.26, 0.36), "ordered": interval(0.76, 0.6, 0.9)}
    return {
        "policy": "checkpoints/25",
        "problems": 8,
        "per_prompt": 4,
        "reward": 0.344,
        "reference_solutions": 2000,
        "reference_error": 0.076,
        "price": {"sampled": 0.001, "trained": 0.00375, "w": 3.75},
        "rows": {
            "rloo": bench_row(interval(0.66, 0.44, 0.93), interval(1.0, 1.0, 1.0)),
            "vineppo_k9": bench_row(
                interval(0.33, 0.25, 0.5), interval(0.7, 0.6, 0.8), values=values
            ),
            "exact": bench_row(interval(0.46, 0.46, 0.46), interval(34.0, 30.0, 40.0), 4),
        },
        "ranking": {"K = 1": scores, "critic": scores | {"top": interval(0.4, 0.3, 0.5)}},
    }


def compared_run(
    workdir: pathlib.Path,
    accuracy: float,
    tokens: int = 100,
    rewards: dict[str, list[float]] | None = None,
    **settings: Any,
) -> pathlib.Path:
    """A run of 4 iterations whose validation accuracy rises linearly from 0.2 to `accuracy`."""
    workdir.mkdir(parents=True)
    lines: list[dict[str, Any]] = []
    for i in (0, 2, 4):
        value = 0.2 + (accuracy - 0.2) * i / 4
        interval = {"eval/pass_at_1_low": value - 0.05, "eval/pass_at_1_high": value + 0.05}
        lines.append(
            {"iteration": i, "step": i, "stage": "eval", "eval/pass_at_1": value} | interval
        )
    for i in range(4):
        used = {"total/episodes": 16 * (i + 1), "total/tokens": tokens * (i + 1)}
        used |= {"timing_s/total_rollout": 0.5 * (i + 1)}
        lines.append({"iteration": i, "step": i + 1, "stage": "train"} | used)
    for i, value in ((0, 0.2), (4, accuracy - 0.1)):
        lines.append({"iteration": i, "step": i, "stage": "test", "test/pass_at_1": value})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (workdir / "metrics.jsonl").write_text(text, encoding="utf-8")
    record = {"config": {"data": {"task": "vinejax.tasks.arithmetic"}} | settings}
    (workdir / "config.json").write_text(json.dumps(record), encoding="utf-8")
    if rewards is not None:
        (workdir / "eval").mkdir()
        rows = [
            {"problem_id": name, "responses": [{"reward": x} for x in values]}
            for name, values in rewards.items()
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (workdir / "eval" / "test.jsonl").write_text(text, encoding="utf-8")
    return workdir
