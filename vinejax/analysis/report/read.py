"""What a run left on disk, read leniently: a killed run must still give a page."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from etils import epath

from vinejax.analysis.report import text

HUGE = 1e30  # sums and squares of less stay finite


@dataclasses.dataclass(frozen=True)
class Record:
    """The numbers that one stage logged at one position (an iteration, or an SFT step)."""

    stage: str
    position: int
    values: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything the page is made of; episodes are the raw objects of the file."""

    name: str
    records: list[Record]
    episodes: dict[int, list[dict[str, Any]]]
    config: dict[str, Any]


def read_run(workdir: epath.Path, max_iterations: int = 5) -> Run:
    """Reads a workdir; of the episode files, only those of `max_iterations` spread iterations."""
    config = _objects(workdir / "config.json", whole=True)
    return Run(
        name=text.printable(workdir.resolve().name),
        records=_records(_objects(workdir / "metrics.jsonl")),
        episodes=_episodes(workdir / "episodes", max_iterations),
        config=config[0] if config else {},
    )


def number(value: object) -> float | None:
    """A float of sane size, or None for what else a log may hold: null, NaN, text, a flag."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        as_float = float(value)
    except OverflowError:  # JSON integers have no upper limit
        return None
    return as_float if abs(as_float) < HUGE else None  # NaN compares false


def spread(items: Sequence[int], count: int) -> list[int]:
    """At most `count` of the items, the first and the last among them, evenly spaced."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _objects(path: epath.Path, whole: bool = False) -> list[dict[str, Any]]:
    """The JSON objects of a file, one a line; what does not parse is the trace of a killed run.

    A resumed run appends after the line that was cut, so such a line can be anywhere.
    """
    try:
        content = path.read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    objects = []
    for line in [content] if whole else content.split("\n"):
        try:
            parsed = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(parsed, dict):
            objects.append(parsed)
    return objects


def _records(lines: list[dict[str, Any]]) -> list[Record]:
    """Lines of one stage and position merged, the later value winning: a resumed run repeats."""
    merged: dict[tuple[str, int], dict[str, float]] = {}
    for line in lines:
        stage = str(line.get("stage", "train"))
        position = number(line.get("step" if stage == "sft" else "iteration"))
        if position is None:
            continue
        values = merged.setdefault((stage, int(position)), {})
        for name, value in line.items():
            finite = number(value)
            if finite is not None and name not in ("iteration", "step"):
                values[name] = finite
    return [Record(*key, values) for key, values in sorted(merged.items())]


def _episodes(folder: epath.Path, max_iterations: int) -> dict[int, list[dict[str, Any]]]:
    if not folder.exists():
        return {}
    names = [path.name for path in folder.iterdir() if path.suffix == ".jsonl"]
    iterations = sorted(int(stem) for name in names if (stem := name[: -len(".jsonl")]).isdecimal())
    found = {i: _objects(folder / f"{i}.jsonl") for i in spread(iterations, max_iterations)}
    return {iteration: episodes for iteration, episodes in found.items() if episodes}
