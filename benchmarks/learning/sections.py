"""The sections of docs/results.md as lines of Markdown."""

import collections
import statistics
import textwrap
from collections.abc import Iterable, Sequence

from outcomes import (
    Axis,
    Group,
    Outcomes,
    Tried,
    Versus,
    at_equal,
    at_the_end,
    chosen_trial,
    mean_improvement,
    sweep_trials,
)
from planning import iterations_of, tried
from run_records import Record
from variants import BASELINES, LONGER, SIZES, TASKS, TRIES, VARIANTS, Trial

from vinejax.tools.report.interquartile import IntervalEstimate, iqm_interval

CONTROL = "arithmetic"
NONE = "–"
NAMES = {"grpo": "GRPO", "rloo": "RLOO"}


def percent(estimate: IntervalEstimate) -> str:
    """'66.1% (63.0 to 68.2)'."""
    value, low, high = (100 * x for x in estimate)
    return f"{value:.1f}% ({low:.1f} to {high:.1f})"


def points(estimate: IntervalEstimate) -> str:
    """A difference of accuracies in percentage points: '+4.1 (−0.2 to +8.0)'."""
    value, low, high = (f"{round(100 * x, 1) + 0.0:+.1f}".replace("-", "−") for x in estimate)
    return f"{value} ({low} to {high})"


def chance(estimate: IntervalEstimate) -> str:
    """'0.83 (0.62 to 0.97)'."""
    return f"{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def scientific(value: float) -> str:
    """'2.5e-4'."""
    mantissa, _, exponent = f"{value:.6e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table, followed by an empty line."""
    lines = [header, ["---"] * len(header), *rows]
    return [*("| " + " | ".join(cells) + " |" for cells in lines), ""]


def task_title(task: str) -> str:
    return f"{task}, the control" if task == CONTROL else task


def what_was_run(found: Outcomes) -> list[str]:
    """Dates, machines, sizes, tasks and variants, all from the records."""
    lines = ["## What was run", ""]
    all_records = [*found.used, *found.seconds]
    dates = sorted(record["date"] for record in all_records)
    lines += [f"From {dates[0]} to {dates[-1]}.", ""]
    lines += _counted("machine", (_machine(record) for record in all_records))
    sizes = ", ".join(f"`{name}={value}`" for name, value in SIZES.items())
    said = f"Every run has {sizes}, where nothing else is said."
    lines += [*textwrap.wrap(said, 100, break_long_words=False, break_on_hyphens=False), ""]
    header = ["task", "config, with its number of free steps after the colon"]
    header.append("iterations of all but the longer runs")
    tasks = [
        [name, f"`configs/{TASKS[name].config}`", str(iterations_of(found.experiment, name))]
        for name in found.experiment.tasks
    ]
    lines += table(header, tasks)
    rows = []
    for name in found.experiment.variants:
        settings = ", ".join(f"`{field}={value}`" for field, value in VARIANTS[name].items())
        rows.append([name, settings])
    for name in found.experiment.longer:
        base, as_long_as, price = LONGER[name]
        lasts = "the seconds" if price is None else f"at {price:g} at least the cost"
        rows.append([name, f"{base} for {lasts} of {as_long_as}"])
    return lines + table(["variant", "settings"], rows)


def commands(found: Outcomes) -> list[str]:
    """Commits, commands and hours of the recorded runs."""
    all_records = [*found.used, *found.seconds]
    lines = ["## Commits, commands and hours", ""]
    lines += _counted("commit", (f"`{record['commit']}`" for record in all_records))
    lines += _counted("command", (f"`{record['command']}`" for record in all_records))
    return lines + _progress(found)


def _progress(found: Outcomes) -> list[str]:
    recorded = [*found.seconds, *found.used]

    def row(title: str, parts: set[str]) -> list[str]:
        runs = [record for record in recorded if record["part"] in parts]
        hours = sum(record["clock_s"] for record in runs) / 3600
        planned = sum(run.part in parts for run in found.planned)
        return [title, str(len(runs)), str(planned), f"{hours:.1f}"]

    parts = list(dict.fromkeys(run.part for run in found.planned))
    rows = [*(row(part, {part}) for part in parts), row("all", set(parts))]
    lines = ["Hours are those of the clock, summed over runs, each of which had one core at most;"]
    lines += ["most runs shared their machine with other work.", ""]
    return lines + table(["part", "runs recorded", "runs planned", "hours"], rows)


def _counted(title: str, texts: Iterable[str]) -> list[str]:
    counts = sorted(collections.Counter(texts).items())
    return table([title, "runs"], [[text, str(count)] for text, count in counts])


def _machine(record: Record) -> str:
    machine = record["machine"]
    versions = ", ".join(f"{name} {machine[name]}" for name in ("python", "jax", "numpy"))
    size = f"{machine['cores']} cores, {machine['memory_gib']:g} GiB"
    return f"{machine['cpu']}, {size}, {versions}"


def equal_episodes(found: Outcomes) -> list[str]:
    """A table per task of test accuracies at the end."""
    lines = ["## At equal policy-gradient episodes", ""]
    lines += [
        "Test accuracy of the last policy: interquartile mean over seeds, with 95% intervals of a",
        "stratified bootstrap; and the probability that a run is better than one of the baseline.",
        "Runs that end below the start have mostly lost the format and solve nothing any more.",
        "",
    ]
    baselines = found.experiment.baselines
    against = [f"P(better than {NAMES[name]})" for name in baselines]
    for task in found.experiment.tasks:
        rows = []
        for variant in found.experiment.variants:
            group = found.compared(task, variant)
            if group is not None:
                versus = [_end_cell(found, group, baseline) for baseline in baselines]
                tokens = statistics.median(run["curve"]["tokens"][-1] for run in group.runs)
                test = percent(iqm_interval([group.test]))
                start = _start(found, task)
                below = str(sum(accuracy < start for accuracy in group.test))
                row = [variant, str(len(group.runs)), test, *versus, below, f"{tokens:,.0f}"]
                rows.append(row)
        header = ["variant", "seeds", "test accuracy", *against, "runs below the start"]
        header.append("generated tokens, median")
        lines += [f"### {task_title(task)}", ""]
        if not rows:
            lines += [NONE, ""]
            continue
        lines += [f"The start solves {_start(found, task):.1%} of the validation problems.", ""]
        lines += table(header, rows)
    return lines


def _start(found: Outcomes, task: str) -> float:
    """Validation accuracy of what all runs of the task but those of a dose start from."""
    config = TASKS[task].config
    runs = [run for run in found.used if run["config"] == config and run["part"] != "dose"]
    return statistics.fmean(run["curve"]["accuracy"][0] for run in runs)


def _end_cell(found: Outcomes, group: Group, baseline: str) -> str:
    other = found.compared(group.task, baseline)
    if other is None or group.variant == baseline:
        return NONE
    return chance(at_the_end(group, other).improvement)


def over_tasks(found: Outcomes) -> list[str]:
    """The probabilities of improvement at equal episodes as means over tasks."""
    against = [f"P(better than {NAMES[name]})" for name in found.experiment.baselines]
    tasks = [task for task in found.experiment.tasks if task != CONTROL]
    rows = []
    for variant in found.experiment.variants:
        cells = []
        for baseline in found.experiment.baselines:
            pairs = [
                (own, other)
                for task in tasks
                if (own := found.compared(task, variant)) is not None
                and (other := found.compared(task, baseline)) is not None
            ]
            is_whole = len(pairs) == len(tasks) and variant != baseline and pairs
            cells.append(chance(mean_improvement(pairs)) if is_whole else NONE)
        if set(cells) != {NONE}:
            rows.append([variant, *cells])
    if not rows:
        return []
    title = f"## At equal episodes: mean over tasks without the control ({', '.join(tasks)})"
    return [title, "", *table(["variant", *against], rows)]


def versus_other_rates(found: Outcomes) -> dict[str, Versus]:
    """A variant against each baseline that has that variant's settings, at equal episodes."""
    task = found.experiment.rates_task
    own = found.compared(task, found.experiment.rates_of) if task else None
    if task is None or own is None:
        return {}
    others = {name: found.find("rates", TASKS[task].config, name) for name in BASELINES}
    return {name: at_the_end(own, other) for name, other in others.items() if other is not None}


def other_rates(found: Outcomes) -> list[str]:
    """The baselines with another variant's settings of the sweep, at equal episodes."""
    task, name = found.experiment.rates_task, found.experiment.rates_of
    trial = chosen_trial(found, task, name) if task else None
    all_versus = versus_other_rates(found)
    if task is None or trial is None or not all_versus:
        return []
    start, rows = _start(found, task), []
    for baseline, versus in all_versus.items():
        group = found.groups["rates", TASKS[task].config, baseline]
        below = str(sum(accuracy < start for accuracy in group.test))
        cells = [percent(versus.other), chance(versus.improvement), below]
        rows.append([baseline, str(len(group.runs)), *cells])
    rate = TASKS[task].learning_rate
    lines = [f"### Tried besides: {task}, the baselines with the settings of {name}", ""]
    lines += [
        f"As above, with {_trial_title(trial, rate)}, which the sweep found for {name}, and not",
        "with what it found for the baselines.",
        "",
    ]
    header = ["variant", "seeds", "test accuracy", f"P({name} is better)", "runs below the start"]
    return lines + table(header, rows)


def equal_cost(found: Outcomes, axis: Axis, unit: str) -> list[str]:
    """A table per task at equal tokens, seconds or cost, variant by variant against baselines."""
    lines = [f"## At equal {unit}{_at_price(axis)}", ""]
    lines += [
        "Validation accuracy where the median run of one of the two groups ends, linear between",
        "two evaluations; a run that has ended before keeps its last. A baseline is the shortest",
        "of its variants whose runs last as long, or else the longest. A run that is cut short has",
        "a learning rate that has not decayed yet: each column of accuracies says what share of",
        "the median run was done.",
        "",
    ]
    header = ["variant"]
    for baseline in found.experiment.baselines:
        name = NAMES[baseline]
        header += [unit, "accuracy", name, f"P(better than {name})"]
    for task in found.experiment.tasks:
        rows = []
        for variant in found.experiment.variants:
            group = found.compared(task, variant)
            if group is None or variant in found.experiment.baselines:
                continue
            cells = []
            for baseline in found.experiment.baselines:
                other = found.as_long(group, baseline, axis)
                cells += _cost_cells(group, other, axis)
            rows.append([variant, *cells])
        lines += [f"### {task_title(task)}", "", *(table(header, rows) if rows else [NONE, ""])]
    return lines


def _cost_cells(group: Group, other: Group | None, axis: Axis) -> list[str]:
    versus = None if other is None else at_equal(group, other, axis)
    if versus is None or other is None:
        return [NONE] * 4

    def accuracy(of: Group, there: IntervalEstimate) -> str:
        share = versus.at / (of.total(axis) or versus.at)
        return f"{percent(there)}, {share:.0%} of {of.variant}"

    own, theirs = accuracy(group, versus.own), accuracy(other, versus.other)
    return [f"{versus.at:,.0f}", own, theirs, chance(versus.improvement)]


def _at_price(axis: Axis) -> str:
    """What a title says after 'cost', if the axis is a price."""
    if isinstance(axis, str):
        return ""
    return f" where a generated token costs {axis:g} trained ones"


def costs_of_runs(found: Outcomes) -> list[str]:
    """A table per task of what the median run of every variant cost, and how many runs died."""
    prices = found.experiment.prices
    lines = ["## Tokens and costs", ""]
    lines += [
        "Medians over runs. A cost is the number of trained tokens and a price times that of",
        "generated tokens, as in the [credit bench](credit_bench.md). Trained tokens are those of",
        "the solutions that were trained on, each counted once.",
        "",
    ]
    header = ["variant", "seeds", "solutions", "trained tokens", "generated tokens"]
    header += [*(f"cost at {price:g}" for price in prices), "test accuracy", "runs below the start"]
    for task in found.experiment.tasks:
        rows = []
        for variant in (*found.experiment.variants, *found.experiment.longer):
            group = found.compared(task, variant)
            if group is None or group.total(0.0) is None:  # at a price of 0: trained tokens
                continue
            totals = [group.total(axis) for axis in ("episodes", 0.0, "tokens", *prices)]
            counts = [f"{total or 0:,.0f}" for total in totals]
            below = sum(accuracy < _start(found, task) for accuracy in group.test)
            test = percent(iqm_interval([group.test]))
            rows.append([variant, str(len(group.runs)), *counts, test, str(below)])
        lines += [f"### {task_title(task)}", "", *(table(header, rows) if rows else [NONE, ""])]
    return lines


def against_all(found: Outcomes) -> list[str]:
    """A table per task of one variant against every other, at equal cost and at equal seconds."""
    name, prices = found.experiment.against_all, found.experiment.prices
    if name is None:
        return []
    lines = [f"## P({name} is better) at equal cost", ""]
    lines += [
        "As in the tables above; the other variant is the shortest of its variants whose runs last",
        f"as long, or else the longest. Behind P are the shares that were done of {name}'s median",
        "run and of the other's.",
        "",
    ]
    header = ["variant", *(f"cost at {price:g}" for price in prices), "seconds"]
    for task in found.experiment.tasks:
        own, rows = found.compared(task, name), []
        for variant in found.experiment.variants:
            if own is not None and variant != name and found.compared(task, variant):
                cells = [_against_cell(found, own, variant, x) for x in (*prices, "seconds")]
                rows.append([variant, *cells])
        lines += [f"### {task_title(task)}", "", *(table(header, rows) if rows else [NONE, ""])]
    return lines


def _against_cell(found: Outcomes, own: Group, variant: str, axis: Axis) -> str:
    other = found.as_long(own, variant, axis)
    versus = None if other is None else at_equal(own, other, axis)
    if versus is None or other is None:
        return NONE
    done = [f"{versus.at / (x.total(axis) or versus.at):.0%} of {x.variant}" for x in (own, other)]
    return f"{chance(versus.improvement)}; {', '.join(done)}"


def dose_response(found: Outcomes) -> list[str]:
    """Gain in test accuracy against the number of free steps."""
    experiment = found.experiment
    if not experiment.doses:
        return []
    lines = ["## Dose and response", ""]
    lines += [
        f"Test accuracy on {experiment.dose_task} by its number of free steps, and its gain in",
        "percentage points. The settings are those that the sweep found for the comparison, in",
        f"runs of {experiment.dose_iterations} iterations.",
        "",
    ]
    tested = [name for name in experiment.dose_variants if name not in BASELINES]
    header = ["free steps", *experiment.dose_variants]
    header += [f"{name} over {NAMES[other]}" for name in tested for other in BASELINES]
    rows = []
    for dose in experiment.doses:
        groups = {name: dose_group(found, dose, name) for name in experiment.dose_variants}
        accuracies = [percent(iqm_interval([g.test])) if g else NONE for g in groups.values()]
        gains = []
        for name in tested:
            for baseline in BASELINES:
                own, other = groups.get(name), groups.get(baseline)
                gains.append(points(at_the_end(own, other).gain) if own and other else NONE)
        rows.append([str(dose), *accuracies, *gains])
    return lines + table(header, rows)


def dose_group(found: Outcomes, dose: int, variant: str) -> Group | None:
    file = TASKS[found.experiment.dose_task].config.partition(":")[0]
    return found.find("dose", f"{file}:{dose}", variant)


def tries(found: Outcomes) -> list[str]:
    """What was tried besides, at equal seconds."""
    experiment = found.experiment
    own_name, other_name = experiment.try_variant, experiment.try_baseline
    config, rows = TASKS[experiment.try_task].config, []
    for name in experiment.tries:
        own, other = (found.find("tries", config, tried(x, name)) for x in (own_name, other_name))
        versus = own and other and at_equal(own, other, "seconds")
        if not (own and other and versus):
            continue
        fields = ", ".join(f"`{field}={value}`" for field, value in TRIES[name].items())
        lengths = [f"{x.runs[0]['iterations']} of {x.seconds:.3f} s" for x in (own, other)]
        accuracies = [percent(versus.own), percent(versus.other), chance(versus.improvement)]
        rows.append([fields, str(len(own.runs)), *lengths, *accuracies])
    if not rows:
        return []
    baseline = NAMES[other_name]
    lines = [f"## Tried besides: {own_name} and {baseline} at equal seconds", ""]
    lines += [
        f"On {experiment.try_task}, with the settings of the comparison but for those in the first",
        f"column, which both get; {baseline} for as many iterations as last as long.",
        "",
    ]
    header = ["settings", "seeds", f"iterations of {own_name}", f"of {baseline}"]
    header += [own_name, baseline, f"P(better than {baseline})"]
    return lines + table(header, rows)


def sweep(found: Outcomes) -> list[str]:
    """All trials of every task and variant; the chosen ones in bold."""
    seeds = ", ".join(map(str, found.experiment.sweep_seeds))
    lines = ["## The sweep", ""]
    lines += [
        f"Mean validation accuracy over the second half of the iterations and the seeds {seeds},",
        "which the comparison does not use, and after it test accuracy ± its standard error. The",
        "comparison has the settings of the trial in bold.",
        "",
    ]
    for task in found.experiment.tasks:
        rate = TASKS[task].learning_rate
        header = ["variant", *(_trial_title(trial, rate) for trial in found.experiment.every_trial)]
        rows = []
        for variant in found.experiment.variants:
            trials, best = sweep_trials(found, task, variant), chosen_trial(found, task, variant)
            cells = []
            for trial in found.experiment.every_trial:
                cell = NONE
                if trial in trials:
                    cell = f"{trials[trial].score:.1%}; {test_of_trial(trials[trial])}"
                cells.append(f"**{cell}**" if trial == best else cell)
            rows.append([variant, *cells])
        lines += [f"### {task_title(task)}", "", *table(header, rows)]
    return lines


def test_of_trial(tried: Tried) -> str:
    """'50.4% ± 4.0'; of a single run '50.4%'."""
    error = "" if tried.error is None else f" ± {100 * tried.error:.1f}"
    return f"{tried.test:.1%}{error}"


def _trial_title(trial: Trial, rate: float) -> str:
    return f"rate {scientific(rate * trial.rate_factor)}, KL {scientific(trial.kl_coef)}"


def seconds(found: Outcomes) -> list[str]:
    """Seconds of an iteration by task and variant."""
    lines = ["## Seconds of an iteration", ""]
    lines += [
        "Median and quartiles over the iterations of one run on one core, measured alone; a run",
        "counts as its iterations times the median. Evaluation and compilation do not count.",
        "",
    ]
    base = {x["task"]: x["seconds"] for x in found.seconds if x["variant"] == "grpo"}
    rows = []
    for line in found.seconds:
        seconds = f"{line['seconds']:.3f} ({line['low']:.3f} to {line['high']:.3f})"
        ratio = f"{line['seconds'] / base[line['task']]:.2f}" if line["task"] in base else NONE
        tokens = f"{line['tokens']:,.0f}"
        rows.append([line["task"], line["variant"], seconds, ratio, tokens, f"{line['load']:g}"])
    header = ["task", "variant", "seconds", "over GRPO", "tokens, mean", "load at the start"]
    return lines + table(header, rows)
