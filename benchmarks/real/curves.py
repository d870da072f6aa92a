"""Validation accuracy of runs on a pretrained model, over solutions.

    pip install -e '.[bench]'
    python benchmarks/real/curves.py                  # the picture of all runs on record
    python benchmarks/real/curves.py WORKDIR ...      # these runs are added first, or renewed

A line of runs.jsonl is a run of configs/alice.py: method, seed, solutions of an iteration and of a
problem, the median seconds of an iteration (of machines that differ), validation accuracy by
iteration, and test accuracy by iteration where it was measured. The runs of seed 1 had rows of 128
tokens. The picture also has the runs of controls.py whose control is in `STYLES`.
"""

import argparse
import datetime
import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from controls import read_records  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.ticker import PercentFormatter  # noqa: E402

import vinejax  # noqa: E402

RUNS = Path(__file__).parent / "runs.jsonl"
PICTURE = Path(__file__).parents[2] / "docs/results/curves_alice.png"
STYLES = {
    "vineppo": ("#0b3d24", "-", "o"),
    "ppo": ("#8c6bb1", "--", "P"),
    "grpo": ("#b0580f", "-", "x"),
    "rloo": ("#d98d3d", "--", "+"),
    "rloo_whitened": ("#d98d3d", ":", "d"),
    "no_steps": ("#3b78b5", "-", "s"),
}
LABELS = {"no_steps": "vineppo without step credit", "rloo_whitened": "rloo, whitened"}
USUAL = 8  # solutions of a problem
SOLUTIONS = 64  # of an iteration of a control in `STYLES`


def record_of(workdir: str) -> dict[str, Any]:
    """The line of a run."""
    cfg = json.loads((Path(workdir) / "config.json").read_text(encoding="utf-8"))["config"]
    metrics = vinejax.run(workdir).metrics
    trained = [x for x in metrics if x["stage"] == "train"]

    def accuracy(stage: str) -> dict[int, float]:
        chosen = [x for x in metrics if x["stage"] == stage]
        return {x["iteration"]: round(x[f"{stage}/pass_at_1"], 4) for x in chosen}

    test = accuracy("test")
    if (evaluated := Path(workdir) / "eval/test.json").exists():  # by --mode=eval
        found = json.loads(evaluated.read_text(encoding="utf-8"))
        test[int(found["source"].rpartition("/")[2])] = round(found["pass_at_1"], 4)
    stages = ("rollout", "value", "score", "train")
    seconds = [sum(x.get(f"timing_s/{stage}", 0.0) for stage in stages) for x in trained]
    return {
        "method": cfg["method"],
        "seed": cfg["seed"],
        "date": datetime.date.today().isoformat(),
        "solutions": cfg["rollout"]["prompts"] * cfg["rollout"]["per_prompt"],
        "per_prompt": cfg["rollout"]["per_prompt"],
        "seconds": round(statistics.median(seconds), 1),
        "validation": accuracy("eval"),
        "test": test,
    }


def control_runs() -> list[dict[str, Any]]:
    """The runs of controls.py on the problems of configs/alice.py, as lines of runs.jsonl."""
    return [
        {**run, "method": run["control"], "solutions": SOLUTIONS, "per_prompt": USUAL}
        for run in read_records()
        if run["set"] == "alice" and run["control"] in STYLES
    ]


def draw(runs: list[dict[str, Any]], picture: Path) -> None:
    """One line a run, the same kind for all seeds of a method."""
    figure, panel = plt.subplots(figsize=(6, 3.6), layout="constrained")
    labelled: set[str] = set()
    for run in sorted(runs, key=lambda run: (list(STYLES).index(run["method"]), run["seed"])):
        method: str = run["method"]
        colour, dash, marker = STYLES[method]
        name = LABELS.get(method, method)
        if run["per_prompt"] != USUAL:
            name, dash = f"{name}, {run['per_prompt']} solutions a problem", ":"
        label = None if name in labelled else name
        labelled.add(name)
        solutions = [run["solutions"] * int(iteration) for iteration in run["validation"]]
        style: dict[str, Any] = dict(
            color=colour, linestyle=dash, marker=marker, markersize=4, linewidth=1
        )
        panel.plot(solutions, [*run["validation"].values()], label=label, **style)
    panel.set(xlabel="solutions", ylabel="validation accuracy", ylim=(0.4, 1.02))
    panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    panel.legend(frameon=False, fontsize="small")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.3)
    figure.savefig(picture, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("workdirs", nargs="*", help="runs of configs/alice.py")
    lines = RUNS.read_text(encoding="utf-8").splitlines() if RUNS.exists() else []
    found = [*map(json.loads, lines), *map(record_of, parser.parse_args().workdirs)]
    runs = {(run["method"], run["seed"], run["per_prompt"]): run for run in found}
    RUNS.write_text("".join(json.dumps(run) + "\n" for run in runs.values()), encoding="utf-8")
    draw([*runs.values(), *control_runs()], PICTURE)


if __name__ == "__main__":
    main()
