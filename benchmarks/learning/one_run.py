"""One planned run in a process of its own: `run.py` starts it, nobody else needs to.

    python benchmarks/learning/one_run.py '{"run": {...}, "core": 0, ...}' OUTPUT.json

Trains in a temporary workdir, evaluates the last policy, and writes what the record of the run says
about learning, or for the part 'seconds' about time.
"""

import dataclasses
import itertools
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parents[2] / "configs"
STAGES = ("rollout", "value", "score", "train")
DIGITS = 5  # of the accuracies in a record


def main(request: dict[str, Any], output: Path) -> None:
    prepare_process(request["core"], request["cache"])
    from vinejax.runtime.workdir import write_atomic  # after the process is pinned: imports jax

    cfg = config_of(request["run"], request["cache"])
    with tempfile.TemporaryDirectory(prefix="vinejax_run_") as folder:
        measured = measure(cfg, Path(folder) / "run", request["run"], request["test_problems"])
    write_atomic(output, json.dumps(measured))  # pyright: ignore[reportArgumentType]


def prepare_process(core: int | None, cache: str) -> None:
    """Binds this process to one core, if one is given, before jax is imported.

    XLA makes as many threads for an operation as it may use cores, so that on one core it makes
    one; no flag of jax 0.10 does that by itself. All programs are cached, however short their
    compilation: tiny models have many such programs.
    """
    if core is not None:
        os.sched_setaffinity(0, {core})
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if cache:
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"


def config_of(run: dict[str, Any], cache: str) -> Any:
    """The checked configuration of a planned run."""
    from vinejax.config.checks import check_config
    from vinejax.config.load import fields_set, from_dict, from_file, override

    fields: Any = from_file(str(CONFIGS / "tiny.py"), run["config"])
    override(fields, {**run["overrides"], "seed": run["seed"], "compile_cache": cache})
    cfg = from_dict(fields)
    check_config(cfg, fields_set(fields))
    return cfg


def measure(cfg: Any, workdir: Path, run: dict[str, Any], test_problems: int) -> dict[str, Any]:
    """Trains, and returns the fields of the record that the run decides."""
    from etils import epath

    from vinejax.records.read import read_run
    from vinejax.tools.report.learning_curve import learning_curve
    from vinejax.training.loop import train

    train(cfg, workdir)
    if run["part"] == "seconds":  # once more: the first time has compiled the programs
        workdir = workdir.with_name("again")
        train(cfg, workdir)
    records = read_run(epath.Path(workdir)).records
    trained = [record.values for record in records if record.stage == "train"]
    if run["part"] == "seconds":
        return seconds_of(trained)
    curve = learning_curve(records)
    names = ("iteration", "accuracy", "low", "high", "episodes", "tokens", "updates")
    lists = {name: [_number(getattr(point, name)) for point in curve] for name in names}
    so_far = [0.0]  # tokens trained on before every iteration
    so_far += itertools.accumulate(values.get("actor/tokens", 0.0) for values in trained)
    lists["trained"] = [_number(so_far[point.iteration]) for point in curve]
    return {
        "free_steps": getattr(cfg.data, "free_steps", None),
        "iterations": len(trained),
        "curve": lists,
        "test": test_of_last(cfg, workdir, test_problems),
    }


def seconds_of(trained: list[dict[str, float]]) -> dict[str, Any]:
    """Median and quartiles of the seconds of an iteration, its tokens, and programs compiled."""
    seconds = [sum(values[f"timing_s/{stage}"] for stage in STAGES) for values in trained]
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return {
        "iterations": len(seconds),
        "seconds": round(middle, DIGITS),
        "low": round(low, DIGITS),
        "high": round(high, DIGITS),
        "tokens": trained[-1]["total/tokens"] / len(seconds),
        "compiles": sum(values["rollout/compiles"] for values in trained),
    }


def test_of_last(cfg: Any, workdir: Path, problems: int) -> dict[str, Any]:
    """Accuracy of the newest checkpoint on the first `problems` of the test split."""
    from vinejax.runtime.checkpoint import Checkpoints
    from vinejax.statistics.accuracy import correct_samples
    from vinejax.training.evaluate import solve
    from vinejax.training.startup import open_session

    more = dataclasses.replace(cfg.eval, problems=problems)
    with open_session(dataclasses.replace(cfg, eval=more), workdir, splits=("test",)) as session:
        with Checkpoints(session.workdir / "checkpoints", keep=1) as checkpoints:
            newest = checkpoints.latest()
            assert newest is not None  # training saves after its last iteration
            params, _ = checkpoints.restore_params(newest, session.load_reference())
        solved = solve(session, params, "test")
    correct = correct_samples(solved.rewards)
    return {
        "accuracy": round(float(correct.mean()), DIGITS),
        "samples": correct.shape[1],
        "correct": "".join(str(count) for count in correct.sum(axis=1)),
    }


def _number(value: float) -> float | int:
    """Counts as integers, accuracies with `DIGITS` decimals."""
    return int(value) if value == int(value) else round(value, DIGITS)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
