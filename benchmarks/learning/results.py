"""Makes docs/results.md and its figures from the two files of measurements.

    python benchmarks/learning/results.py
    python benchmarks/learning/results.py --rest     # prints the tables that the page leaves out
    python benchmarks/learning/results.py --experiment=cheap   # prints all tables of another one

The same files give the same bytes, figures included (with one version of matplotlib). What people
wrote about the results is taken from `findings.md.j2` beside the measurements; a number in it is a
placeholder such as {{bifurcation.vineppo.episodes.accuracy}}, so that it cannot differ from the
tables. An unknown placeholder is an error that lists those there are.
"""

import argparse
import re
import sys
from pathlib import Path

import sections
from figures import write_figures
from outcomes import Outcomes, at_equal, at_the_end, chosen_trial, outcomes, sweep_trials
from run_records import RESULTS, SECONDS, folder_of, read_lines, reused
from variants import BASELINES, EXPERIMENTS, TASKS, Experiment

from vinejax.tools.report.interquartile import iqm_interval

FOLDER = Path(__file__).parent
CRITIC = "ppo"  # compared with in findings.md.j2 alone: it has no runs of equal seconds
PLACEHOLDER = re.compile(r"\{\{([^{}]*)\}\}")
HEAD = """# Results

Does step credit pay? VinePPO's variants and baselines on tasks with known credit, each with the
learning rate and KL coefficient that one shared sweep found for it. Made by
`python benchmarks/learning/results.py` from `results.jsonl` and `seconds.jsonl` beside it; `--rest`
prints all other tables. [How to run it](../benchmarks/README.md#learning).
"""


def page(found: Outcomes, findings: str, figures: list[str]) -> str:
    """The text of docs/results.md. Raises ValueError for an unknown placeholder in `findings`."""
    lines = [HEAD]
    if not found.used:
        return HEAD + "\nNo run of the plan is recorded yet.\n"
    if findings:
        lines += [filled(findings, placeholders(found)).strip(), ""]
    by_task = {f"curves_{task}": sections.task_title(task) for task in found.experiment.tasks}
    for name in figures:
        if name in by_task:
            lines += [_figure(name, f"Validation accuracy on {by_task[name]}, over three axes"), ""]
    lines += sections.equal_episodes(found)
    lines += sections.equal_cost(found, "seconds", "seconds")
    if "dose" in figures:
        lines += [_figure("dose", "Gain in test accuracy against the number of free steps"), ""]
    lines += sections.what_was_run(found)
    return "\n".join(lines).rstrip() + "\n"


def rest(found: Outcomes) -> str:
    """The tables that docs/results.md leaves out, as Markdown; "" without a recorded run."""
    if not found.used:
        return ""
    lines = sections.over_tasks(found)
    lines += sections.other_rates(found)
    lines += sections.dose_response(found)
    lines += sections.equal_cost(found, "tokens", "generated tokens")
    if found.experiment.prices:
        lines += sections.costs_of_runs(found)
    for price in found.experiment.prices:
        lines += sections.equal_cost(found, price, "cost")
    lines += sections.against_all(found)
    lines += sections.tries(found)
    lines += sections.sweep(found)
    if found.seconds:
        lines += sections.seconds(found)
    lines += sections.commands(found)
    return "\n".join(lines).rstrip() + "\n"


def _figure(name: str, description: str) -> str:
    return f"![{description}](results/{name}.png)\n([SVG](results/{name}.svg))"


def filled(text: str, values: dict[str, str]) -> str:
    """The text with its placeholders replaced."""
    names = {match.strip() for match in PLACEHOLDER.findall(text)}
    if unknown := sorted(names - values.keys()):
        known = ", ".join(sorted(values))
        raise ValueError(f"findings.md.j2: no value for {', '.join(unknown)}; there are {known}")
    return PLACEHOLDER.sub(lambda match: values[match[1].strip()], text)


def placeholders(found: Outcomes) -> dict[str, str]:
    """What findings.md.j2 can name: TASK.VARIANT.AXIS.WHAT, TASK.VARIANT.sweep.RATE (at the lower
    KL coefficient), rates.BASELINE.WHAT, and dose.NUMBER.VARIANT.BASELINE.
    """
    values = {"seeds": str(len(found.experiment.seeds))}
    for baseline, versus in sections.versus_other_rates(found).items():
        values[f"rates.{baseline}.accuracy"] = sections.percent(versus.other)
        values[f"rates.{baseline}.better"] = sections.chance(versus.improvement)
    for task in found.experiment.tasks:
        for variant in found.experiment.variants:
            values |= _of_variant(found, task, variant)
    for dose in found.experiment.doses:
        for variant in found.experiment.dose_variants:
            for baseline in BASELINES:
                own = sections.dose_group(found, dose, variant)
                other = sections.dose_group(found, dose, baseline)
                if own and other and variant != baseline:
                    gain = sections.points(at_the_end(own, other).gain)
                    values[f"dose.{dose}.{variant}.{baseline}"] = gain
    return values


def _of_variant(found: Outcomes, task: str, variant: str) -> dict[str, str]:
    values = {}
    name = f"{task}.{variant}"
    trial, group = chosen_trial(found, task, variant), found.compared(task, variant)
    if trial is not None:
        values[f"{name}.rate"] = f"{TASKS[task].learning_rate * trial.rate_factor:g}"
        values[f"{name}.kl"] = f"{trial.kl_coef:g}"
    lowest = min(trial.kl_coef for trial in found.experiment.trials)
    for trial, tried in sweep_trials(found, task, variant).items():
        if trial.kl_coef == lowest:
            rate = sections.scientific(TASKS[task].learning_rate * trial.rate_factor)
            values[f"{name}.sweep.{rate}"] = sections.test_of_trial(tried)
    if group is None:
        return values
    values[f"{name}.episodes.accuracy"] = sections.percent(iqm_interval([group.test]))
    for baseline in (*BASELINES, CRITIC):
        other = found.compared(task, baseline)
        if other is None or variant == baseline:
            continue
        values[f"{name}.episodes.{baseline}"] = sections.chance(
            at_the_end(group, other).improvement
        )
        for axis in ("tokens", "seconds"):
            longer = found.as_long(group, baseline, axis)
            if longer and (versus := at_equal(group, longer, axis)):
                values[f"{name}.{axis}.{baseline}"] = sections.chance(versus.improvement)
                values[f"{name}.{axis}.accuracy.{baseline}"] = sections.percent(versus.own)
                values[f"{name}.{axis}.{baseline}.accuracy"] = sections.percent(versus.other)
    return values


def measured(experiment: Experiment, measurements: Path) -> Outcomes:
    """The outcomes of the two files in the folder `measurements`, and of runs that are reused."""
    results = [*reused(experiment.reuses), *read_lines(measurements / RESULTS)]
    return outcomes(experiment, results, read_lines(measurements / SECONDS))


def write_results(experiment: Experiment, measurements: Path, docs: Path) -> Path:
    """Writes the page and its figures into the folder `docs`; returns the page's file."""
    found = measured(experiment, measurements)
    file = measurements / "findings.md.j2"
    findings = file.read_text(encoding="utf-8") if file.exists() else ""
    figures = write_figures(found, docs / "results") if found.used else []
    target = docs / "results.md"
    target.write_text(page(found, findings, figures), encoding="utf-8")
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--experiment", choices=EXPERIMENTS, default="full", help="in variants.py")
    parser.add_argument("--rest", action="store_true", help="print what the page leaves out")
    options = parser.parse_args()
    experiment, folder = EXPERIMENTS[options.experiment], folder_of(options.experiment)
    try:
        if options.experiment != "full":
            print(page(found := measured(experiment, folder), "", []) + "\n" + rest(found), end="")
        elif options.rest:
            print(rest(measured(experiment, folder)), end="")
        else:
            print(write_results(experiment, folder, FOLDER.parents[1] / "docs"))
    except ValueError as error:
        sys.exit(f"results.py: error: {error}")


if __name__ == "__main__":
    main()
