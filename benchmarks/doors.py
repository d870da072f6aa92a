"""Credit of turns on the doors task: methods at equal episodes, over seeds.

    python benchmarks/doors.py [--out=runs/doors] [--seeds=10] [--methods=vineppo,grpo,gigpo]
                               [--iterations=40] [--prompts=4]

One warm-up of configs/doors.py is every run's start. All runs sample as many problems with 8
episodes each per iteration: four, as with the 16 of the config every method solves all problems.
VinePPO's continuations come on top, and their tokens are in the table. Prints,
and writes to `doors.md` in `--out`, the mean test pass@1 of the ends over seeds with its 95%
interval (bootstrap over seeds), and the difference from GRPO's with its interval, paired by seed.
Runs that are there already are taken as they are.
"""

import argparse
import json
from pathlib import Path

import numpy as np

import vinejax
from vinejax.statistics.bootstrap import percentile_interval, resampled

CONFIG = Path(__file__).parents[1] / "configs/doors.py"
DRAWS = 10_000
HEAD = "| method | test pass@1 | less GRPO's | tokens drawn |\n|---|---|---|---|"


def start_of(out: Path) -> Path:
    """The folder of the weights after the warm-up."""
    fields = {"iterations": 0, "eval.samples": 1, "eval.problems": 4}
    if not (out / "start/warmup").is_dir():
        vinejax.train(CONFIG, fields, workdir=out / "start")
    return out / "start/warmup"


def end_of(workdir: Path) -> tuple[float, float]:
    """(test pass@1, tokens drawn) at the end of a run."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").open(encoding="utf-8")]
    tests = [line["test/pass_at_1"] for line in lines if line["stage"] == "test"]
    trained = [line for line in lines if line["stage"] == "train"]
    return tests[-1], trained[-1]["total/tokens"]


def interval(x: np.ndarray) -> str:
    """'78.0% (77.2 to 78.9)': the mean of [seeds] and its interval."""
    draws = x[resampled(np.random.default_rng(0), len(x), DRAWS)].mean(axis=1)
    low, high = percentile_interval(draws)
    return f"{100 * x.mean():.1f}% ({100 * low:.1f} to {100 * high:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("runs/doors"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", default="vineppo,grpo,gigpo")
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--prompts", type=int, default=4)
    given = parser.parse_args()
    methods = given.methods.split(",")
    fields = {"model.path": str(start_of(given.out)), "iterations": given.iterations}
    fields |= {"rollout.prompts": given.prompts, "ppo.minibatch": 8 * given.prompts}
    fields |= {"eval.every": 0, "eval.samples": 8, "eval.problems": 200}
    ends: dict[str, list[tuple[float, float]]] = {method: [] for method in methods}
    for seed in range(given.seeds):
        for method in methods:
            workdir = given.out / f"{method}_{seed}"
            if not (workdir / "report.html").is_file():
                vinejax.train(f"{CONFIG}:{method}", fields | {"seed": seed}, workdir=workdir)
            ends[method].append(end_of(workdir))
    table = [HEAD]
    scores = {method: np.array(rows)[:, 0] for method, rows in ends.items()}
    for method, rows in ends.items():
        less = interval(scores[method] - scores["grpo"]) if "grpo" in scores else ""
        tokens = np.mean([tokens for _, tokens in rows])
        table.append(f"| `{method}` | {interval(scores[method])} | {less} | {tokens:,.0f} |")
    text = "\n".join(table)
    print(text)
    (given.out / "doors.md").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
