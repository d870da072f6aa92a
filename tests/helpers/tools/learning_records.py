"""Records of made-up runs for the tests of benchmarks/learning: accuracies as told, no training."""

from collections.abc import Callable
from typing import Any

MACHINE = {"cpu": "Test CPU", "cores": 2, "memory_gib": 8.0, "python": "3.11.9", "jax": "0.10.2"}
MACHINE |= {"jaxlib": "0.10.2", "numpy": "2.4.0"}
ABOUT = {"commit": "c" * 40, "command": "python benchmarks/learning/run.py", "machine": MACHINE}
ABOUT |= {"date": "2026-01-02T03:04:05+00:00"}
START = 0.25  # accuracy before training
SECONDS = {"vineppo": 0.4, "grpo": 0.1, "rloo": 0.1}  # of an iteration; else 0.2
TOKENS = {"vineppo": 900, "grpo": 100, "rloo": 100}  # of an iteration; else 300
TRAINED = 100  # of an iteration


def base_of(variant: str) -> str:
    """Of a longer variant or a try."""
    return variant.partition("_seconds")[0].partition("_cost")[0].partition("/")[0]


def record_of(run: Any, accuracy: float, start: float = START) -> dict[str, Any]:
    """The record of a planned run whose accuracy rises linearly from `start` to `accuracy`."""
    fields = run.overrides
    assert fields is not None
    base = base_of(run.variant)
    if run.part == "seconds":
        seconds = SECONDS.get(base, 0.2)
        timed = {"iterations": 40, "seconds": seconds, "low": seconds, "high": 2 * seconds}
        timed |= {"tokens": float(TOKENS.get(base, 300)), "clock_s": 9.0, "load": 0.1}
        return {**run._asdict(), **timed, **ABOUT}
    last = fields["iterations"]
    iterations = list(range(0, last + 1, fields["eval.every"]))
    accuracies = [start + (accuracy - start) * i / last for i in iterations]
    curve = {
        "iteration": iterations,
        "accuracy": accuracies,
        "low": accuracies,
        "high": accuracies,
        "episodes": [16 * i for i in iterations],
        "tokens": [TOKENS.get(base, 300) * i for i in iterations],
        "updates": [2 * i for i in iterations],
        "trained": [TRAINED * i for i in iterations],
    }
    test = {"accuracy": accuracy, "samples": 2, "correct": "0120"}
    measured = {"free_steps": None, "iterations": last, "curve": curve, "test": test}
    return {**run._asdict(), **measured, "clock_s": 30.0, **ABOUT}


def recorded(
    plan: Callable[..., list[Any]], experiment: Any, accuracy: Callable[[Any], float]
) -> list[dict[str, Any]]:
    """Records of all runs of an experiment: planned again until nothing new is known."""
    records: list[dict[str, Any]] = []
    known: set[str] = set()
    while new := [
        run for run in plan(experiment, records) if run.overrides and run.key not in known
    ]:
        records += [record_of(run, accuracy(run)) for run in new]
        known |= {run.key for run in new}
    return records
