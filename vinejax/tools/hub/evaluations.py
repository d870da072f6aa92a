"""The evaluations of a run: those of its iterations, and those that eval/*.json records."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from vinejax.records.read import Record, finite_number

SPLITS = {"eval": "validation", "test": "test"}  # stage of a record -> split
# 'pass_at_1', or with the name of a data set 'openai/gsm8k/pass_at_1'
METRIC = re.compile(r"(?:(?P<data>.+)/)?(?P<kind>pass|maj)_at_(?P<k>\d+)")
START = "the start"  # source of an evaluation before training


class Measured(NamedTuple):
    """A number with the ends of its 95% interval, or None without an interval."""

    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        text = f"{self.value:.1%}"
        return text if self.low is None else f"{text} ({self.low:.1%} to {self.high:.1%})"


class Evaluation(NamedTuple):
    """The accuracies of one policy on one set of problems."""

    problems: str  # the split or the name of the file's record, and the data set if it has several
    iteration: int | None  # finished iterations of the policy; None if the record does not say
    metrics: dict[str, Measured]  # by names such as 'pass@1'
    samples: int | None  # responses per problem
    num_problems: int | None
    data: str = ""  # name of the data set, if the record has several


def evaluations_of(
    workdir: epath.Path, records: Sequence[Record], iteration: int
) -> list[Evaluation]:
    """The evaluations of the start and of the policy after `iteration` iterations.

    They are those of metrics.jsonl and those of eval/*.json. A file's replaces one of metrics.jsonl
    with the same split and policy. A file of another form, or of another policy, is left out.
    """
    found: dict[tuple[str, int | None], Evaluation] = {}
    for record in records:
        if record.stage in SPLITS and record.position in (0, iteration):
            stage, values = record.stage, record.values
            own = {key.removeprefix(f"{stage}/"): value for key, value in values.items()}
            for one in _of_values(SPLITS[stage], record.position, own):
                found[one.problems, one.iteration] = one
    folder = workdir / "eval"
    for file in sorted(folder.glob("*.json")) if folder.exists() else []:
        for one in _of_file(file):
            if one.iteration in (0, iteration):
                found[one.problems, one.iteration] = one
    return sorted(found.values(), key=lambda one: (one.problems, one.iteration or 0))


def iteration_of(source: str) -> int | None:
    """The finished iterations of a policy named 'best/20', 'checkpoints/20' or 'the start'."""
    last = source.rpartition("/")[2]
    return 0 if source == START else int(last) if last.isdecimal() else None


def _of_file(file: epath.Path) -> Iterable[Evaluation]:
    """The evaluations in test.json or in sets.json; none in a file of another form."""
    try:
        record: Any = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return
    if not isinstance(record, dict):
        return
    if isinstance(record.get("source"), str):
        yield from _of_values(file.stem, iteration_of(record["source"]), _numbers(record))
    result, sets = record.get("result"), record.get("sets")
    iterations = {"start": 0, "result": iteration_of(result) if isinstance(result, str) else None}
    for name, row in sets.items() if isinstance(sets, dict) else ():
        for policy, iteration in iterations.items():
            if isinstance(row, dict) and isinstance(row.get(policy), dict):
                yield from _of_values(name, iteration, _numbers(row) | _numbers(row[policy]))


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    return {key: x for key, value in record.items() if (x := finite_number(value)) is not None}


def _of_values(
    name: str, iteration: int | None, values: Mapping[str, float]
) -> Iterable[Evaluation]:
    """An evaluation of all problems, and one per data set if the values name several."""
    by_data: dict[str, dict[str, Measured]] = {}
    for key, value in values.items():
        if match := METRIC.fullmatch(key):
            measured = Measured(value, values.get(f"{key}_low"), values.get(f"{key}_high"))
            if measured.low is None or measured.high is None:
                measured = Measured(value, None, None)
            by_data.setdefault(match["data"] or "", {})[f"{match['kind']}@{match['k']}"] = measured
    samples, problems = (
        int(values[key]) if key in values else None for key in ("samples", "problems")
    )
    for data, metrics in by_data.items():
        of_data = f"{name}: {data}" if data else name
        yield Evaluation(of_data, iteration, metrics, samples, None if data else problems, data)
