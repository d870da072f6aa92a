"""Error and cost of labels over RLOO's, by setting: which to recommend (docs/credit_bench.md).

    python benchmarks/label_settings.py --task=bifurcation --seed=1 --output=labels.jsonl
    python benchmarks/label_settings.py --table=benchmarks/label_settings.jsonl

A setting is an estimator of the credit bench. All settings of a process are measured on the same
solutions, as by `--mode=credit`, without true values. The table pools the seeds of a task: a cost
is the geometric mean over seeds, with a 95% bootstrap interval over the repeats of each seed. It
has the costs at three prices of a sampled token in trained tokens.

Errors are given twice. The first is that of the credit bench, rescaled by the measured E ĝ·g, which
is very noisy where repeats are few. The second, 'at own scale', is E|ĝ|²/|g|² - 1: all estimators
here are unbiased, so that E ĝ·g = |g|². The scale, E ĝ·g / |g|², should be 1.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vinejax.config.load import from_dict, load, override
from vinejax.core.settings import Config
from vinejax.statistics.bootstrap import percentile_interval
from vinejax.tools.bench.bench_mode import fixed_parts
from vinejax.tools.bench.estimators import ESTIMATORS, estimator_config
from vinejax.tools.bench.gradients import MeasuredGradients, error_draws
from vinejax.tools.bench.measure import measure_gradients
from vinejax.tools.bench.reference import sample_reference
from vinejax.tools.bench.results import BASELINE, PRICES
from vinejax.tools.bench.settings import UNIFORM_POSITION
from vinejax.training.startup import open_session

CONFIGS = Path(__file__).parents[1] / "configs"
TASKS = {"arithmetic": "tiny.py", "free_order": "free_order.py", "bifurcation": "bifurcation.py:24"}
# The range of a fork's position; solutions have 15, 48 and 89 tokens on average.
HORIZONS = {"arithmetic": 24, "free_order": 48, "bifurcation": 90}
TOKENS = {"values.positions": "tokens", "values.every": 10}
ROLES = {"credit.lambda_": 0.5, "credit.baseline_lambda": 0.5}
GROUP = {"credit.labels": "group"}


def settings(task: str) -> dict[str, dict[str, Any]]:
    """The settings that are compared, by name."""
    k1 = {**TOKENS, **ROLES, "values.k": 1}
    reuse, probe = {"values.reuse": True}, {"values.prior": "probe"}
    both = {**k1, **reuse, **probe}
    blend = {**both, "credit.labels": "blend", "credit.label_weight": 0.7}
    mixed = {**both, "credit.labels": "mixed", "credit.label_weight": 0.5}
    own = {**k1, **probe, "values.dedup": False}
    fork = {
        "values.positions": UNIFORM_POSITION,
        "values.every": HORIZONS[task],
        "values.dedup": False,
        "bench.branches": "fork",
    }
    return {
        BASELINE: {"method": "rloo"},
        "vineppo k1": {**TOKENS, "values.k": 1},
        "roles k1": k1,
        "roles k1, probe": {**k1, **probe},
        "roles k1, reuse, probe": both,
        "roles k3, reuse, probe": {**both, "values.k": 3},
        "group k1": {**k1, **GROUP},
        "group k1, reuse, probe": {**both, **GROUP},
        "group k3, reuse, probe": {**both, **GROUP, "values.k": 3},
        "mixed k1, reuse, probe": mixed,
        "mixed k3, reuse, probe": {**mixed, "values.k": 3},
        "blend k1, w = 0.5": {**blend, "credit.label_weight": 0.5},
        "blend k1": blend,
        "blend k1, every 5": {**blend, "values.every": 5},
        "blend k3": {**blend, "values.k": 3},
        "roles k1, reuse, probe, every 5": {**both, "values.every": 5},
        "first k1, probe": {**own, "bench.branches": "first"},
        "all k1, probe": {**own, "bench.branches": "all"},
        "fork k1": {**fork, "values.k": 1},
        "fork k3": {**fork, "values.k": 3},
    }


def config(task: str, seed: int, sizes: dict[str, Any]) -> Config:
    fields = load(str(CONFIGS / TASKS[task]))
    override(fields, {"seed": seed, **sizes})
    return from_dict(fields)


def measure(
    task: str, seed: int, sizes: dict[str, Any], chosen: Sequence[str]
) -> list[dict[str, Any]]:
    """A record of each chosen setting: its gradients, and its tokens per solution."""
    cfg = config(task, seed, sizes)
    ESTIMATORS.update(settings(task))
    configs = {name: estimator_config(cfg, name) for name in chosen or settings(task)}
    with tempfile.TemporaryDirectory() as folder, open_session(cfg, folder, ("train",)) as session:
        parts, _ = fixed_parts(session)
        reference = sample_reference(parts, session.cfg)
        repeats, solutions = measure_gradients(parts, session.cfg, configs, reference, say)
    count = len(solutions.episodes)
    return [
        {
            "task": task,
            "seed": seed,
            "setting": name,
            "gradients": measured.gradients()._asdict(),
            "squared": reference.product,
            "reference_error": reference.error,
            "trained": solutions.trained_tokens + float(np.mean(measured.trained)) / count,
            "sampled": solutions.tokens + float(np.mean(measured.tokens)) / count,
            "solutions": count,  # of a repeat
        }
        for name, measured in repeats.items()
    ]


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def log_costs(record: dict[str, Any], baseline: dict[str, Any], own_scale: bool) -> np.ndarray:
    """[1 + prices, 1 + draws]: the logarithms of the error and of the costs over the baseline's.

    With `own_scale` the error is E|ĝ|²/|g|² - 1, that of an unbiased estimator.
    """
    gradients = [MeasuredGradients(**x["gradients"]) for x in (record, baseline)]
    if own_scale:  # as if every ĝ·g were |g|²
        gradients = [x._replace(products=[record["squared"]] * len(x.squares)) for x in gradients]
    errors = [error_draws(x, record["squared"]) for x in gradients]
    ratio = np.log(errors[0] / np.where(errors[1] > 0, errors[1], np.nan))
    tokens = [[x["trained"] + price * x["sampled"] for x in (record, baseline)] for price in PRICES]
    return np.stack([ratio, *(ratio + np.log(mine / theirs) for mine, theirs in tokens)])


def print_table(records: list[dict[str, Any]]) -> None:
    """Prints, for each task, the scale, and errors and costs of all settings over RLOO's."""
    for task in dict.fromkeys(record["task"] for record in records):
        own = {(x["setting"], x["seed"]): x for x in records if x["task"] == task}
        errors = {seed: x["reference_error"] for (_, seed), x in own.items()}
        print(f"\n{task}: squared error of the reference by seed {errors}")
        print(f"setting: seeds, scale; error, cost at {PRICES}: rescaled, then at own scale")
        for setting in dict.fromkeys(setting for setting, _ in own):
            seeds = [seed for name, seed in own if name == setting]
            pairs = [(own[setting, seed], own[BASELINE, seed]) for seed in seeds]
            scales = [np.mean(x["gradients"]["products"]) / x["squared"] for x, _ in pairs]
            print(f"{setting}: {len(seeds)} seeds, {np.mean(scales):.2f}")
            for own_scale in (False, True):
                logs = np.mean([log_costs(*pair, own_scale) for pair in pairs], axis=0)
                print("    " + " | ".join(map(shown, np.exp(logs))))


def shown(draws: np.ndarray) -> str:
    """The first draw, the sample itself, with the interval of the others."""
    low, high = percentile_interval(np.where(np.isfinite(draws[1:]), draws[1:], np.inf))
    return f"{draws[0]:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Error and cost of labels, by setting.")
    parser.add_argument("--task", choices=TASKS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", default="labels.jsonl")
    parser.add_argument("--settings", nargs="*", default=[], help="names; by default all")
    parser.add_argument("--table")
    parser.add_argument("--problems", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--reference", type=int, default=10_000)
    args = parser.parse_args()
    if args.table:
        print_table(list(map(json.loads, Path(args.table).read_text().splitlines())))
        return
    sizes = {f"bench.{name}": getattr(args, name) for name in ("problems", "repeats", "reference")}
    with Path(args.output).open("a") as file:
        for record in measure(args.task, args.seed, sizes, args.settings):
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
