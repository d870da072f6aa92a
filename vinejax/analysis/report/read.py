"""Reads the files of a run leniently: a killed run must still give a page."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from etils import epath

from vinejax.analysis.report import text
from vinejax.runtime.stages import number_field

COMPARISON = "compare.json"  # in a workdir: what `--mode=compare` found
HUGE = 1e30  # sums and squares of smaller numbers stay finite

JsonObject = dict[str, object]  # values can be anything and are checked where they are read


class Record(NamedTuple):
    """The numbers that one stage logged at one position: an iteration, or an SFT step."""

    stage: str
    position: int
    values: dict[str, float]


class Run(NamedTuple):
    """All data of a run that the page shows."""

    name: str
    records: list[Record]
    episodes: dict[int, list[JsonObject]]  # by iteration, as they stand in the file
    config: JsonObject
    bench: JsonObject  # the record of the credit bench; empty if there is none
    comparison: JsonObject  # that of a comparison with other runs; empty if there is none


def read_run(workdir: epath.Path, max_iterations: int = 5) -> Run:
    """Reads a workdir, with at most `max_iterations` files of episodes, evenly spread."""
    config = _objects(workdir / "config.json", whole=True)
    bench = _objects(workdir / "credit" / "bench.json", whole=True)
    comparison = _objects(workdir / COMPARISON, whole=True)
    return Run(
        name=text.printable(workdir.resolve().name),
        records=_records(_objects(workdir / "metrics.jsonl")),
        episodes=_episodes(workdir / "episodes", max_iterations),
        config=config[0] if config else {},
        bench=bench[0] if bench else {},
        comparison=comparison[0] if comparison else {},
    )


def finite_number(value: object) -> float | None:
    """The value as a float; None if it is null, NaN, huge, text or a bool, as a log may hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        as_float = float(value)
    except OverflowError:  # JSON integers have no upper limit
        return None
    return as_float if abs(as_float) < HUGE else None  # NaN compares false


def spread(items: Sequence[int], count: int) -> list[int]:
    """At most `count` of the items, evenly spaced, with the first and the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _objects(path: epath.Path, whole: bool = False) -> list[JsonObject]:
    """The JSON objects of a file, one per line, or its one object if `whole`.

    A line that does not parse is skipped: it was being written when the run was killed. It can be
    anywhere, because a resumed run appends after it.
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


def _records(lines: list[JsonObject]) -> list[Record]:
    """Merges lines of one stage and position; later values win, as a resumed run repeats lines."""
    merged: dict[tuple[str, int], dict[str, float]] = {}
    for line in lines:
        stage = str(line.get("stage", "train"))
        position = finite_number(line.get(number_field(stage)))
        if position is None:
            continue
        values = merged.setdefault((stage, int(position)), {})
        for name, value in line.items():
            finite = finite_number(value)
            if finite is not None and name not in ("iteration", "step"):
                values[name] = finite
    return [Record(*key, values) for key, values in sorted(merged.items())]


def _episodes(folder: epath.Path, max_iterations: int) -> dict[int, list[JsonObject]]:
    if not folder.exists():
        return {}
    names = [path.name for path in folder.iterdir() if path.suffix == ".jsonl"]
    iterations = sorted(int(stem) for name in names if (stem := name[: -len(".jsonl")]).isdecimal())
    rows = {i: _objects(folder / f"{i}.jsonl") for i in spread(iterations, max_iterations)}
    return {iteration: episodes for iteration, episodes in rows.items() if episodes}
