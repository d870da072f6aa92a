"""The two files of measurements of an experiment, one JSON object per line.

`results.jsonl`, a line per run:
  part          'sweep', 'comparison', 'rates', 'dose' or 'tries'
  task, variant names in variants.py; of a try VARIANT/TRY
  config        config file, with its argument after a colon
  free_steps    `data.free_steps`, or null
  seed          of the run
  overrides     dotted fields that differ from the config file
  iterations    that the run had
  curve         lists of one length, an element per evaluation on the validation split: iteration,
                accuracy, low, high (its 95% interval), episodes, tokens (generated), updates, and
                trained: the response tokens of the solutions that were trained on, each counted
                once and not once an epoch; runs before 2026-11-28 have no such list
  test          of the last policy: accuracy, samples per problem, and `correct`, a digit per
                problem in the order of the split: how many of its samples are right
  clock_s       of the whole run, on a machine that other runs share: for planning only
  commit, command, machine, date

`seconds.jsonl`, a line per task and variant, measured alone: `seconds` is the median time of an
iteration of training, `low` and `high` are its quartiles, `load` is the machine's when it began.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Record = dict[str, Any]

NAMED_BY = ("part", "task", "config", "variant", "seed", "overrides")
RESULTS, SECONDS = "results.jsonl", "seconds.jsonl"
# Methods whose runs trained on every token that they generated, in records without `trained`.
TRAIN_ON_ALL = ("grpo", "rloo")

FOLDER = Path(__file__).parent


def folder_of(experiment: str) -> Path:
    """Where the two files of an experiment lie; those of 'quick' are not kept with the code."""
    return {"full": FOLDER, "quick": Path("runs/learning_quick")}.get(
        experiment, FOLDER / experiment
    )


def key_of(record: Record) -> str:
    """What tells a run from every other run, as text."""
    return json.dumps({name: record[name] for name in NAMED_BY}, sort_keys=True)


def costs(record: Record, price: float) -> list[float] | None:
    """The cost of a run at each of its evaluations, trained + price · generated tokens.

    `price` is that of a generated token in trained tokens. None if the record has no trained
    tokens. The credit bench has the same cost (docs/credit_bench.md).
    """
    curve = record["curve"]
    if "trained" not in curve:
        return None
    pairs = zip(curve["trained"], curve["tokens"], strict=True)
    return [trained + price * generated for trained, generated in pairs]


def read_lines(file: Path) -> list[Record]:
    """The records of a file, in order; none if it is absent. A cut last line is left out.

    Raises ValueError, naming file and line, if any other line is damaged.
    """
    if not file.exists():
        return []
    records = []
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            break
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{file}:{number}: is damaged; delete the line ({error})") from error
    return records


def reused(experiments: Iterable[str]) -> list[Record]:
    """The runs of other experiments, for one in which costs are compared.

    Runs without a list `trained` get the list `tokens` in its place if they trained on all that
    they generated. Of the others, which had continuations, only those of the sweep count.
    """
    records = []
    for experiment in experiments:
        for record in read_lines(folder_of(experiment) / RESULTS):
            curve = record["curve"]
            if "trained" not in curve and record["overrides"]["method"] in TRAIN_ON_ALL:
                record = record | {"curve": curve | {"trained": curve["tokens"]}}
            if "trained" in record["curve"] or record["part"] == "sweep":
                records.append(record)
    return records


def append_line(file: Path, record: Record) -> None:
    """Adds a record in one write, after removing what an interrupted write may have left."""
    file.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(record, allow_nan=False) + "\n").encode()
    with file.open("ab+") as stream:
        stream.seek(0)
        whole = stream.read().rfind(b"\n") + 1
        stream.truncate(whole)
        stream.write(line)
        stream.flush()
        os.fsync(stream.fileno())
