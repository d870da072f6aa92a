"""Reads the runs that `compare.html` compares."""

import json
import os
from collections.abc import Sequence
from typing import NamedTuple

from etils import epath

from vinejax.core.errors import UserError
from vinejax.core.settings import Config, as_tree
from vinejax.records import formats
from vinejax.records.read import finite_number, read_run
from vinejax.runtime.workdir import flatten_names, recorded_settings
from vinejax.tools.report.learning_curve import EvaluationPoint, learning_curve

Settings = dict[str, object]  # dotted name of a field -> its value


class ComparedRun(NamedTuple):
    """The data of one run.

    `test` is pass@1 on the test split after the last iteration, or None. `rewards` maps a problem
    to the rewards of its samples in `eval/test.jsonl`, or is None if `--mode=eval` has not written
    this file.
    """

    name: str
    settings: Settings
    revision: str
    curve: list[EvaluationPoint]
    test: float | None
    rewards: dict[str, list[float]] | None


def read_runs(paths: Sequence[str]) -> list[ComparedRun]:
    """Reads the runs of the workdirs `paths`, and gives them different names.

    Raises UserError for fewer than two workdirs, a workdir that is given twice, a folder without a
    run, a run without an evaluation on the validation split, and runs of different tasks.
    """
    if len(paths) < 2:
        raise UserError("--mode=compare needs the workdirs of two runs or more: runs/a runs/b")
    folders = [epath.Path(path).resolve() for path in paths]
    for i, folder in enumerate(folders):
        if folder in folders[:i]:
            raise UserError(f"{paths[i]}: is given twice; compare different runs")
    runs = [_read_run(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]
    tasks = {str(run.settings["data.task"]): run.name for run in runs}
    if len(tasks) > 1:
        (task, name), (other, other_name), *_ = tasks.items()
        message = "runs of different tasks cannot be compared"
        raise UserError(f"{name} has data.task {task!r}, {other_name} {other!r}: {message}")
    return runs


def _read_run(folder: epath.Path, name: str) -> ComparedRun:
    run = read_run(folder, max_iterations=0)
    config = run.config.get("config")
    if not isinstance(config, dict):
        raise UserError(f"{folder}: is not the workdir of a run; it has no usable config.json")
    curve = learning_curve(run.records)
    if not curve:
        raise UserError(f"{folder}: has no evaluation on the validation split; train it first")
    done = max((r.position + 1 for r in run.records if r.stage == "train"), default=0)
    # A run that goes on after its end has tests of its start and of its earlier end.
    tests = {r.position: r.values.get("test/pass_at_1") for r in run.records if r.stage == "test"}
    revision = run.config.get("git_revision") or ""
    # A field that was added after the run had its default.
    settings = flatten_names(as_tree(Config())) | recorded_settings(config)
    return ComparedRun(
        name=name,
        settings=settings,
        revision=formats.clip(revision, 80).text,
        curve=curve,
        test=tests.get(done) if done else None,
        rewards=_rewards(folder / "eval" / "test.jsonl"),
    )


def _rewards(file: epath.Path) -> dict[str, list[float]] | None:
    """Maps problems to their samples' rewards; None if the file does not exist or is empty.

    Raises UserError for a damaged file.
    """
    if not file.exists():
        return None
    rewards: dict[str, list[float]] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            numbers = [finite_number(response["reward"]) for response in row["responses"]]
            finite = [number for number in numbers if number is not None]
            if not finite or len(finite) < len(numbers):
                raise ValueError("a reward is missing")
            rewards[str(row["problem_id"])] = finite
        except (ValueError, KeyError, TypeError) as error:
            message = f"is damaged ({error}); write it again with --mode=eval"
            raise UserError(f"{file}:{number}: {message}") from error
    return rewards or None


def _names(folders: Sequence[epath.Path]) -> list[str]:
    """Names of the runs, each of which is the last n parts of the run's path.

    The number n is the smallest with which all names are different.
    """
    parts = [os.fspath(folder).rstrip("/").split("/") for folder in folders]
    count = 1
    while len({tuple(path[-count:]) for path in parts}) < len(parts):
        count += 1
    return [formats.printable("/".join(path[-count:])) for path in parts]
