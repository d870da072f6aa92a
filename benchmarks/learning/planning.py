"""The runs of an experiment, in order, from its table and from what was measured so far."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from run_records import Record, costs, key_of
from variants import (
    BASELINES,
    DOSE_START,
    LONGER,
    SIZES,
    TASKS,
    TRIES,
    VARIANTS,
    Experiment,
    Fields,
    Trial,
)

PARTS = ("seconds", "sweep", "comparison", "rates", "dose", "tries")
FIRST_TRIAL = Trial(1.0, 1e-4)  # the settings under which seconds are measured
# Solutions change their lengths during a run, so the cost of a longer run is known but nearly.
COST_MARGIN = 1.05
Seconds = Mapping[tuple[str, str], float]  # of an iteration, by (task, variant)


class Planned(NamedTuple):
    """A run. `overrides` is None as long as they depend on runs that are not done."""

    part: str
    task: str
    config: str
    variant: str
    seed: int
    overrides: Fields | None

    @property
    def key(self) -> str:
        return key_of(self._asdict())


def plan(experiment: Experiment, records: list[Record]) -> list[Planned]:
    """All runs, in the order in which they are made.

    Those after the sweep have the settings that the sweep in `records` found best, and the longer
    variants and a try's baseline as many iterations as the seconds or the costs in `records` say.
    """
    seconds = measured_seconds(experiment, records)
    best = {
        (task, variant): best_trial(experiment, task, variant, records)
        for task in experiment.tasks
        for variant in experiment.variants
    }
    return [
        *_seconds_runs(experiment),
        *_sweep_runs(experiment, records),
        *_comparison_runs(experiment, best, seconds, records),
        *_rates_runs(experiment, best),
        *_dose_runs(experiment, best),
        *_try_runs(experiment, best, seconds),
    ]


def measured_seconds(experiment: Experiment, records: Iterable[Record]) -> Seconds:
    """The seconds of an iteration as they were measured under the plan; the last if repeated."""
    planned = {run.key for run in _seconds_runs(experiment)}
    return {(x["task"], x["variant"]): x["seconds"] for x in records if key_of(x) in planned}


def missing(planned: list[Planned], records: list[Record]) -> list[Planned]:
    """The planned runs that no record has."""
    done = {key_of(record) for record in records}
    return [run for run in planned if run.key not in done]


def best_trial(
    experiment: Experiment, task: str, variant: str, records: list[Record]
) -> Trial | None:
    """The trial of the sweep with the highest `score`; None if a run is still missing."""
    return swept(experiment, task, variant, records)[1]


def swept(
    experiment: Experiment, task: str, variant: str, records: list[Record]
) -> tuple[tuple[Trial, ...], Trial | None]:
    """The trials that a variant gets as far as is known, and the best once none is missing.

    The score of a trial is the mean over the seeds of the sweep. While the highest rate is the
    best, a higher one follows, and a lower one while the lowest is, as long as the experiment has
    one. Without seeds there is no sweep, and the first trial is the best.
    """
    if not experiment.sweep_seeds:
        return experiment.trials[:1], experiment.trials[0]
    by_key = {key_of(record): record for record in records if record["part"] == "sweep"}

    def mean_score(trial: Trial) -> float | None:
        runs = _trial_runs(experiment, task, variant, trial)
        found = [by_key[run.key] for run in runs if run.key in by_key]
        return statistics.fmean(map(score, found)) if len(found) == len(runs) else None

    trials = experiment.trials
    higher, lower = (experiment.further(x) for x in (experiment.higher, experiment.lower))
    while True:
        scores = [mean_score(trial) for trial in trials]
        if None in scores:
            return trials, None
        best = max(zip(trials, scores, strict=True), key=lambda pair: pair[1] or 0.0)[0]
        rates = [trial.rate_factor for trial in trials]
        if higher and best.rate_factor == max(rates):
            trials = (*trials, higher.pop(0))
        elif lower and best.rate_factor == min(rates):
            trials = (*trials, lower.pop(0))
        else:
            return trials, best


def score(record: Record) -> float:
    """Mean validation accuracy over the second half of a run's iterations."""
    curve = record["curve"]
    half = record["iterations"] / 2
    late = [y for at, y in zip(curve["iteration"], curve["accuracy"], strict=True) if at >= half]
    return statistics.fmean(late)


def iterations_of(experiment: Experiment, task: str) -> int:
    """Iterations of the runs of a task, the longer ones excepted."""
    return experiment.iterations or TASKS[task].iterations


def _overrides(experiment: Experiment, task: str, variant: str, trial: Trial) -> dict[str, Any]:
    """The fields that make a run, all but its seed."""
    length = _length(experiment, iterations_of(experiment, task))
    return {**_settings(task, variant, trial), **length}


def _settings(task: str, variant: str, trial: Trial) -> dict[str, Any]:
    rate = TASKS[task].learning_rate * trial.rate_factor
    chosen = {"optimizer.learning_rate": float(f"{rate:.6g}"), "kl.coef": trial.kl_coef}
    return {**SIZES, **VARIANTS[variant], **chosen}


def _length(experiment: Experiment, iterations: int) -> dict[str, int]:
    every = max(1, round(iterations / experiment.evaluations))
    return {"iterations": iterations, "eval.every": every, "checkpoint.every": iterations}


def _trial_runs(experiment: Experiment, task: str, variant: str, trial: Trial) -> list[Planned]:
    overrides = _overrides(experiment, task, variant, trial)
    config = TASKS[task].config
    return [
        Planned("sweep", task, config, variant, seed, overrides) for seed in experiment.sweep_seeds
    ]


def _sweep_runs(experiment: Experiment, records: list[Record]) -> Iterator[Planned]:
    for task in experiment.tasks:
        trials = {name: swept(experiment, task, name, records)[0] for name in experiment.variants}
        for trial in experiment.every_trial:
            for variant in experiment.variants:
                if trial in trials[variant]:
                    yield from _trial_runs(experiment, task, variant, trial)


def _seconds_runs(experiment: Experiment) -> Iterator[Planned]:
    """Runs that evaluate next to nothing, under the settings of `FIRST_TRIAL`."""
    length = _length(experiment, experiment.seconds_iterations)
    length |= {"eval.every": 0, "eval.problems": 8}
    seed = experiment.seconds_seed
    for task in experiment.tasks:
        for variant in experiment.variants:
            overrides = {**_settings(task, variant, FIRST_TRIAL), **length}
            yield Planned("seconds", task, TASKS[task].config, variant, seed, overrides)
    for name in experiment.tries:
        for variant in (experiment.try_variant, experiment.try_baseline):
            overrides = {**_settings(experiment.try_task, variant, FIRST_TRIAL), **length}
            yield _try_run(experiment, "seconds", name, variant, seed, {**overrides, **TRIES[name]})


def _comparison_runs(
    experiment: Experiment,
    best: Mapping[tuple[str, str], Trial | None],
    seconds: Seconds,
    records: list[Record],
) -> Iterator[Planned]:
    by_key = {key_of(record): record for record in records if record["part"] == "comparison"}
    lengths = {
        (task, variant): _length_of_longer(experiment, task, variant, best, seconds, by_key)
        for task in experiment.tasks
        for variant in experiment.longer
    }
    for seed in experiment.seeds:
        for task in experiment.tasks:
            config = TASKS[task].config
            for variant in experiment.variants:
                yield _compared_run(experiment, task, variant, seed, best[task, variant])
            for variant in experiment.longer:
                base = LONGER[variant].base
                trial, iterations = best[task, base], lengths[task, variant]
                overrides = None
                if trial and iterations:
                    overrides = _overrides(experiment, task, base, trial)
                    overrides |= _length(experiment, iterations)
                yield Planned("comparison", task, config, variant, seed, overrides)


def _compared_run(
    experiment: Experiment, task: str, variant: str, seed: int, trial: Trial | None
) -> Planned:
    overrides = trial and _overrides(experiment, task, variant, trial)
    return Planned("comparison", task, TASKS[task].config, variant, seed, overrides)


def _length_of_longer(
    experiment: Experiment,
    task: str,
    name: str,
    best: Mapping[tuple[str, str], Trial | None],
    seconds: Seconds,
    by_key: Mapping[str, Record],
) -> int | None:
    """Iterations of a longer variant, which last at least as long as the variant that it equals.

    None if the seconds of one of the two are not measured or, where costs are to be equal, as long
    as a run of one of the two is missing in the comparison's records `by_key`.
    """
    longer, usual = LONGER[name], iterations_of(experiment, task)
    pair, price = (longer.base, longer.as_long_as), longer.price
    if price is None:
        own, other = (seconds.get((task, variant)) for variant in pair)
        return _as_long_as(usual, own, other)

    def cost(variant: str) -> float | None:
        """The cost of the median run."""
        trial = best[task, variant]
        runs = [_compared_run(experiment, task, variant, x, trial) for x in experiment.seeds]
        found = [costs(by_key[run.key], price) for run in runs if run.key in by_key]
        ends = [of_run[-1] for of_run in found if of_run is not None]
        return statistics.median(ends) if len(ends) == len(runs) else None

    own, other = (cost(variant) for variant in pair)
    return _as_long_as(usual, own, other and COST_MARGIN * other)


def _as_long_as(iterations: int, own: float | None, other: float | None) -> int | None:
    """Iterations that last as long as `iterations` of another variant.

    `own` and `other` are the seconds, or costs, of equally many iterations of the two; None if one
    is not known.
    """
    if own is None or other is None:
        return None
    return max(iterations, math.ceil(iterations * other / own))


def _rates_runs(
    experiment: Experiment, best: Mapping[tuple[str, str], Trial | None]
) -> Iterator[Planned]:
    """The baselines with another variant's settings of the sweep, as many episodes as it has."""
    task = experiment.rates_task
    if task is None:
        return
    trial = best[task, experiment.rates_of]
    for seed in experiment.seeds:
        for variant in BASELINES:
            overrides = trial and _overrides(experiment, task, variant, trial)
            yield Planned("rates", task, TASKS[task].config, variant, seed, overrides)


def _dose_runs(
    experiment: Experiment, best: Mapping[tuple[str, str], Trial | None]
) -> Iterator[Planned]:
    if not experiment.doses:
        return
    task = experiment.dose_task
    file = TASKS[task].config.partition(":")[0]
    length = _length(experiment, experiment.dose_iterations)
    for seed in experiment.dose_seeds:
        for dose in experiment.doses:
            for variant in experiment.dose_variants:
                trial = best[task, variant]
                settings = trial and _settings(task, variant, trial)
                overrides = settings and {**settings, **length, **DOSE_START}
                yield Planned("dose", task, f"{file}:{dose}", variant, seed, overrides)


def tried(variant: str, name: str) -> str:
    """How a variant is called in the records of a try."""
    return f"{variant}/{name}"


def _try_run(
    experiment: Experiment,
    part: str,
    name: str,
    variant: str,
    seed: int,
    overrides: Fields | None,
) -> Planned:
    task = experiment.try_task
    return Planned(part, task, TASKS[task].config, tried(variant, name), seed, overrides)


def _try_runs(
    experiment: Experiment, best: Mapping[tuple[str, str], Trial | None], seconds: Seconds
) -> Iterator[Planned]:
    task, pair = experiment.try_task, (experiment.try_variant, experiment.try_baseline)
    usual = iterations_of(experiment, task)
    for seed in experiment.try_seeds:
        for name in experiment.tries:
            own_s, baseline_s = (seconds.get((task, tried(variant, name))) for variant in pair)
            longer = _as_long_as(usual, baseline_s, own_s)
            for variant, iterations in zip(pair, (usual, longer), strict=True):
                trial, overrides = best[task, variant], None
                if trial and iterations:
                    overrides = {**_overrides(experiment, task, variant, trial), **TRIES[name]}
                    overrides |= _length(experiment, iterations)
                yield _try_run(experiment, "tries", name, variant, seed, overrides)
