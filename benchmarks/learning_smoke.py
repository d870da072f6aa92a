"""Learning curves of every method on the tiny task, from the one shipped start.

    python benchmarks/learning_smoke.py [--out=runs/learning] [--methods=vineppo,ppo,...]
                                        [--config.FIELD=VALUE ...]

Runs configs/tiny.py, configs/tiny_<method>.py and configs/contrib/tiny_<method>.py one after
another, each in its own workdir under `--out`, and writes `curves.json` there: for every evaluation
the test or validation accuracy with its 95% interval, and what the run had used by then: prompts,
episodes, generated tokens, gradient steps, and seconds a stage. With matplotlib (`pip install -e
'.[bench]'`) also `curves.png`. Runs that are there already are resumed or taken as they are. Prints
a table of starts and ends. Overrides apply to every run, such as --config.budget.episodes=6400. The
teacher of `opd` is the run of `vineppo`, which must have been made before.
"""

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

from vinejax.config.checks import check_config
from vinejax.config.load import from_dict, from_file, override
from vinejax.core.settings import Config
from vinejax.methods.known import METHODS, method_names
from vinejax.training.loop import train

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = {
    name: f"{'' if name in METHODS else 'contrib/'}tiny_{name.replace('++', '_pp')}.py"
    for name in method_names()
} | {"vineppo": "tiny.py"}
STAGES = {"eval": "validation", "test": "test"}


def settings_of(method: str, out: Path, overrides: list[str]) -> Config:
    """The settings of a method's run, after checks."""
    fields: Any = from_file(str(CONFIGS / "tiny.py"), FILES[method])
    if method == "opd":
        fields.opd.teacher = str(out / "vineppo")
    for given in overrides:
        name, _, value = given.removeprefix("--config.").partition("=")
        override(fields, {name: json.loads(value)})
    cfg = from_dict(fields)
    check_config(cfg)
    return cfg


def run(method: str, out: Path, overrides: list[str]) -> list[dict[str, Any]]:
    """The curve of one method: a point an evaluation."""
    cfg = settings_of(method, out, overrides)
    return curve(Path(train(cfg, out / method.replace("+", "p"))))


def curve(workdir: Path) -> list[dict[str, Any]]:
    """Accuracies of a workdir, each with the totals of the iterations before it."""
    text = (workdir / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    totals = {line["iteration"] + 1: line for line in lines if line["stage"] == "train"}
    points = []
    for line in lines:
        if line["stage"] in STAGES:
            used = totals.get(line["iteration"], {})
            accuracy = {
                name: line[f"{line['stage']}/pass_at_1{suffix}"]
                for name, suffix in (("accuracy", ""), ("low", "_low"), ("high", "_high"))
            }
            cost = {name: x for name, x in used.items() if "total" in name}
            split = STAGES[line["stage"]]
            points.append({"split": split, "iteration": line["iteration"]} | accuracy | cost)
    return points


def table(curves: dict[str, list[dict[str, Any]]]) -> str:
    """Test accuracy at the start and at the end, and what the run had used."""
    rows = ["| method | start | end (95% interval) | episodes | tokens | updates | seconds |"]
    rows.append("|---|---|---|---|---|---|---|")
    for method, points in curves.items():
        start, *_, end = [point for point in points if point["split"] == "test"]
        seconds = sum(x for name, x in end.items() if name.startswith("timing_s/total_"))
        interval = f"{end['accuracy']:.1%} ({end['low']:.1%} to {end['high']:.1%})"
        counts = " | ".join(f"{end[f'total/{x}']:,}" for x in ("episodes", "tokens", "updates"))
        rows.append(
            f"| {method} | {start['accuracy']:.1%} | {interval} | {counts} | {seconds:.0f} |"
        )
    return "\n".join(rows)


def plot(curves: dict[str, list[dict[str, Any]]], file: Path) -> None:
    """Validation accuracy against the tokens that a run had generated, a panel a method."""
    import matplotlib  # pyright: ignore[reportMissingImports]

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # pyright: ignore[reportMissingImports]
    from matplotlib.ticker import EngFormatter  # pyright: ignore[reportMissingImports]

    columns = 4
    figure, axes = plt.subplots(
        -(-len(curves) // columns), columns, sharey=True, figsize=(12, 7), layout="constrained"
    )
    for panel in axes.flat[len(curves) :]:
        panel.axis("off")
    for (method, points), panel in zip(curves.items(), axes.flat, strict=False):
        seen = [point for point in points if point["split"] == "validation"]
        against = "total/tokens" if seen[-1]["total/tokens"] else "total/updates"
        x = [point.get(against, 0) for point in seen]
        panel.fill_between(x, [p["low"] for p in seen], [p["high"] for p in seen], alpha=0.2)
        panel.plot(x, [p["accuracy"] for p in seen], marker="o", markersize=3)
        panel.set(title=method, ylim=(0, 1), xlabel=against.replace("total/", ""))
        panel.xaxis.set_major_formatter(EngFormatter())
        panel.grid(alpha=0.3)
    figure.supylabel("validation pass@1, 95% interval")
    figure.savefig(file, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    parser.add_argument("--methods", default=",".join(FILES))
    arguments, overrides = parser.parse_known_args()
    if wrong := [x for x in overrides if not x.startswith("--config.")]:
        parser.error(f"unknown argument {wrong[0]}")
    curves = {}
    for method in arguments.methods.split(","):
        if method not in FILES:
            parser.error(f"unknown method {method!r}: {', '.join(FILES)}")
        curves[method] = run(method, arguments.out, overrides)
        (arguments.out / "curves.json").write_text(json.dumps(curves, indent=1) + "\n")
    if importlib.util.find_spec("matplotlib") is not None:
        plot(curves, arguments.out / "curves.png")
    print(table(curves))


if __name__ == "__main__":
    main()
