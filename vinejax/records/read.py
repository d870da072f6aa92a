"""Reads the files of a run, and skips damaged parts, so that a killed run can be shown, too."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from etils import epath

from vinejax.records import formats
from vinejax.runtime.log import number_field
from vinejax.runtime.status import Status, read_status
from vinejax.runtime.workdir import flatten_names, is_remote

COMPARISON = "compare.json"  # the file in a workdir that `--mode=compare` writes
HUGE = 1e30  # limit of a number: sums and squares of smaller numbers stay finite

JsonObject = dict[str, object]  # values can be anything and are checked where they are read


class Record(NamedTuple):
    """The numbers that one stage logged at one position: an iteration, or an SFT step."""

    stage: str
    position: int
    values: dict[str, float]


class RunRecords(NamedTuple):
    """All data of a run that its HTML page shows."""

    name: str
    records: list[Record]
    episodes: dict[int, list[JsonObject]]  # rows of episodes/<iteration>.jsonl, by iteration
    config: JsonObject
    bench: JsonObject  # the record of the credit bench; empty if there is none
    comparison: JsonObject  # the record of a comparison with other runs; empty if there is none
    status: Status | None  # None if no process has written it


def read_run(workdir: epath.Path, max_iterations: int = 5) -> RunRecords:
    """Reads a workdir, with at most `max_iterations` files of episodes; see `RunReader`."""
    return RunReader(workdir, max_iterations).read()


class RunReader:
    """Reads a workdir again and again while a run writes there; every read takes only new data.

    A file of episodes is complete once it exists, so it is read once. metrics.jsonl grows at its
    end; if it was replaced, as by a resumed run, it is read from its beginning.
    """

    def __init__(self, workdir: epath.Path, max_iterations: int = 5):
        """`max_iterations` limits the iterations whose episodes `read` returns."""
        self._workdir = workdir
        self._max_iterations = max_iterations
        self._metrics = _Lines(workdir / "metrics.jsonl")
        self._merged: dict[tuple[str, int], dict[str, float]] = {}
        self._episodes: dict[int, list[JsonObject]] = {}

    def read(self) -> RunRecords:
        """The run as it is now, with the episodes of evenly spread iterations.

        While the run goes on, the choice of these iterations changes as little as possible when
        iterations are added.
        """
        workdir, status = self._workdir, read_status(self._workdir)
        is_new, lines = self._metrics.read()
        if is_new:
            self._merged.clear()
        _merge(self._merged, lines)
        is_live = status is not None and status.state == "running"
        return RunRecords(
            name=formats.printable(workdir.resolve().name),
            records=[
                Record(stage, position, values)
                for (stage, position), values in sorted(self._merged.items())
            ],
            episodes=self._read_episodes(steady if is_live else spread),
            config=read_config(workdir),
            bench=_object(workdir / "credit" / "bench.json"),
            comparison=_object(workdir / COMPARISON),
            status=status,
        )

    def _read_episodes(
        self, choose: Callable[[Sequence[int], int], list[int]]
    ) -> dict[int, list[JsonObject]]:
        folder = self._workdir / "episodes"
        names = [path.name for path in folder.iterdir()] if folder.exists() else []
        stems = (name[: -len(".jsonl")] for name in names if name.endswith(".jsonl"))
        iterations = sorted(int(stem) for stem in stems if stem.isdecimal())
        self._episodes = {
            i: self._episodes.get(i) or read_episodes(folder / f"{i}.jsonl")
            for i in choose(iterations, self._max_iterations)
        }
        return {i: episodes for i, episodes in self._episodes.items() if episodes}


class _Lines:
    """The JSON objects of a file that has one object per line and grows at its end.

    `read` skips lines that do not parse: a run that is killed while it writes leaves half a line.
    Such a line can be anywhere in the file, because a resumed run appends after it.
    """

    def __init__(self, path: epath.Path):
        self._path = path
        self._file: tuple[int, int] | None = None  # a local file's inode and the bytes read

    def read(self) -> tuple[bool, list[JsonObject]]:
        """(whether the list has all objects of the file, not only the new ones; the list).

        A last line without a newline is read now, and read again when it is complete.
        """
        try:
            if is_remote(self._path):
                return True, _parsed(self._path.read_bytes().split(b"\n"))
            with open(self._path, "rb") as file:
                stat = os.fstat(file.fileno())
                inode, start = self._file or (stat.st_ino, 0)
                is_new = inode != stat.st_ino or start > stat.st_size or start == 0
                file.seek(0 if is_new else start)
                content = file.read()
        except (FileNotFoundError, NotADirectoryError):  # the workdir may be a file
            self._file = None
            return True, []
        complete = content.rfind(b"\n") + 1
        self._file = stat.st_ino, (0 if is_new else start) + complete
        return is_new, _parsed(content.split(b"\n"))


def read_episodes(file: epath.Path) -> list[JsonObject]:
    """The episodes of a file without its damaged lines; [] if the file is missing."""
    return _Lines(file).read()[1]


def read_config(workdir: epath.Path) -> JsonObject:
    """The object in a workdir's `config.json`; {} if the file is missing or damaged."""
    return _object(workdir / "config.json")


def holds_run(workdir: epath.Path) -> bool:
    """Whether a folder has the record of a run, even a damaged one.

    The config.json of a model, as in the folder that `--mode=export` writes, is no such record.
    """
    record = read_config(workdir)
    return (workdir / "config.json").exists() and (not record or "config" in record)


def discount_of(config: JsonObject) -> float:
    """`ppo.gamma` in the object of `read_config`; 1 if it is missing."""
    recorded = config.get("config")
    fields = flatten_names(recorded) if isinstance(recorded, dict) else {}
    gamma = finite_number(fields.get("ppo.gamma"))
    return 1.0 if gamma is None else gamma


def finite_number(value: object) -> float | None:
    """The value as a float; None for null, NaN, huge numbers, text and bools."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON integers have no upper limit
        return None
    return number if abs(number) < HUGE else None  # NaN compares false


def spread(items: Sequence[int], count: int) -> list[int]:
    """At most `count` of the items, evenly spaced, with the first and the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def steady(items: Sequence[int], count: int) -> list[int]:
    """At most `count` of the rising items, which are the last item and the multiples of a step.

    The step is the smallest of 1, 2, 5, 10, ... that leaves few enough items. While items are
    added, a chosen multiple stays chosen until a larger step is needed.
    """
    for step in (digit * 10**power for power in range(30) for digit in (1, 2, 5)):
        chosen = [item for item in items[:-1] if item % step == 0] + list(items[-1:])
        if len(chosen) <= count:
            return chosen
    return []


def _object(path: epath.Path) -> JsonObject:
    """The JSON object that a file holds; {} if the file is missing or holds no object."""
    objects = _parsed([path.read_bytes()]) if path.exists() else []
    return objects[0] if objects else {}


def _parsed(lines: Iterable[bytes]) -> list[JsonObject]:
    """The JSON objects in the lines of a text."""
    objects = []
    for line in lines:
        try:
            parsed = json.loads(line.decode("utf-8", errors="replace"))
        except (ValueError, RecursionError):
            continue
        if isinstance(parsed, dict):
            objects.append(parsed)
    return objects


def _merge(merged: dict[tuple[str, int], dict[str, float]], lines: list[JsonObject]) -> None:
    """Puts the numbers of `lines` into `merged`, under the (stage, position) of their line.

    A number in a later line replaces the number of the same name and position.
    """
    for line in lines:
        stage = str(line.get("stage", "train"))
        position = finite_number(line.get(number_field(stage)))
        if position is None:
            continue
        values = merged.setdefault((stage, int(position)), {})
        for name, value in line.items():
            finite = finite_number(value)
            if finite is not None and name not in ("iteration", "step"):
                values[sys.intern(name)] = finite  # else each of 100,000 records has its own names
