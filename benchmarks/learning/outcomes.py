"""What the records of the comparison say, as numbers: groups of runs, and groups compared."""

import statistics
from collections.abc import Iterable
from typing import NamedTuple

from planning import Planned, best_trial, measured_seconds, plan, score
from run_records import Record, costs, key_of
from variants import LONGER, TASKS, Experiment, Trial

from vinejax.tools.report.interquartile import (
    IntervalEstimate,
    improvement_interval,
    interquartile_mean,
    iqm_difference,
    iqm_interval,
)
from vinejax.tools.report.learning_curve import accuracy_at, aligned

# A list of `curve`, 'seconds', or a price of a generated token: the cost at that price.
Axis = str | float


class Group(NamedTuple):
    """The runs of one variant with one config, by seed; at least one.

    `seconds` are those of an iteration, None if not measured.
    """

    part: str
    task: str
    config: str
    variant: str
    runs: tuple[Record, ...]
    seconds: float | None

    @property
    def test(self) -> list[float]:
        """Accuracies of the last policies on the test split."""
        return [run["test"]["accuracy"] for run in self.runs]

    def positions(self, run: Record, axis: Axis) -> list[float] | None:
        """Where the evaluations of a run lie on an axis; None for seconds or costs not measured.

        Seconds are iterations times the median seconds of an iteration.
        """
        if isinstance(axis, float):
            return costs(run, axis)
        if axis != "seconds":
            return run["curve"][axis]
        if self.seconds is None:
            return None
        return [iteration * self.seconds for iteration in run["curve"]["iteration"]]

    def total(self, axis: Axis) -> float | None:
        """The end of the median run on this axis; None if it is not measured for all runs.

        Not of the first to end: a run that loses the format writes next to nothing, and would cut
        all others short.
        """
        ends = [positions[-1] for run in self.runs if (positions := self.positions(run, axis))]
        return statistics.median(ends) if len(ends) == len(self.runs) else None

    def accuracies_at(self, axis: Axis, at: float) -> list[float]:
        """Validation accuracy of every run there, linear between two evaluations.

        A run that has ended before keeps its last.
        """
        accuracies = []
        for run in self.runs:
            positions = self.positions(run, axis)
            assert positions is not None
            accuracies.append(
                accuracy_at(positions, run["curve"]["accuracy"], min(at, positions[-1]))
            )
        return accuracies


class Versus(NamedTuple):
    """Two groups at the same place of an axis: interquartile means, and P(own > other)."""

    at: float
    own: IntervalEstimate
    other: IntervalEstimate
    improvement: IntervalEstimate
    gain: IntervalEstimate  # difference of the interquartile means


class Outcomes(NamedTuple):
    """Everything that the results page shows, from the records that the plan names."""

    experiment: Experiment
    groups: dict[tuple[str, str, str], Group]  # by (part, config, variant)
    seconds: list[Record]  # of an iteration, in the plan's order
    planned: list[Planned]
    used: list[Record]  # of the planned runs, in the plan's order

    def find(self, part: str, config: str, variant: str) -> Group | None:
        return self.groups.get((part, config, variant))

    def compared(self, task: str, variant: str) -> Group | None:
        """The group of a variant in the comparison."""
        return self.find("comparison", TASKS[task].config, variant)

    def as_long(self, group: Group, baseline: str, axis: Axis) -> Group | None:
        """The shortest runs of a baseline that last as long on an axis as those of a group.

        So a baseline is cut short as little as can be. The longest runs if all are shorter, None if
        none are recorded, or seconds or costs are not measured.
        """
        names = [baseline, *(name for name, longer in LONGER.items() if longer.base == baseline)]
        groups = [self.compared(group.task, name) for name in names]
        ends = [(end, x) for x in groups if x is not None and (end := x.total(axis)) is not None]
        own = group.total(axis)
        if own is None or not ends:
            return None
        long_enough = [pair for pair in ends if pair[0] >= own]
        if long_enough:
            return min(long_enough, key=lambda pair: pair[0])[1]
        return max(ends, key=lambda pair: pair[0])[1]


def outcomes(experiment: Experiment, results: list[Record], seconds: list[Record]) -> Outcomes:
    """Groups of all planned runs that are recorded; records that no plan names are left out.

    The order of the lines in the files makes no difference.
    """
    planned = plan(experiment, [*seconds, *results])
    by_key = {key_of(record): record for record in [*seconds, *results]}
    recorded = [by_key[run.key] for run in planned if run.key in by_key]
    used = [record for record in recorded if record["part"] != "seconds"]
    measured = [record for record in recorded if record["part"] == "seconds"]
    by_variant = measured_seconds(experiment, measured)
    named: dict[tuple[str, str, str], list[Record]] = {}
    for run in used:
        named.setdefault((run["part"], run["config"], run["variant"]), []).append(run)
    groups = {}
    for (part, config, variant), runs in named.items():
        task = runs[0]["task"]
        base = LONGER[variant].base if variant in LONGER else variant
        own = by_variant.get((task, base))
        ordered = tuple(sorted(runs, key=lambda run: run["seed"]))
        groups[part, config, variant] = Group(part, task, config, variant, ordered, own)
    return Outcomes(experiment, groups, measured, planned, used)


def at_the_end(own: Group, other: Group) -> Versus:
    """Test accuracies of the last policies: of runs with equally many episodes."""
    return _versus(own.runs[0]["curve"]["episodes"][-1], own.test, other.test)


def at_equal(own: Group, other: Group, axis: Axis) -> Versus | None:
    """Validation accuracies where the median run of the shorter group ends on `axis`.

    None if the seconds or costs of one of them are not measured.
    """
    ends = own.total(axis), other.total(axis)
    if ends[0] is None or ends[1] is None:
        return None
    at = min(ends[0], ends[1])
    return _versus(at, own.accuracies_at(axis, at), other.accuracies_at(axis, at))


def _versus(at: float, own: list[float], other: list[float]) -> Versus:
    return Versus(
        at,
        iqm_interval([own]),
        iqm_interval([other]),
        improvement_interval([own], [other]),
        iqm_difference([own], [other]),
    )


def mean_improvement(pairs: Iterable[tuple[Group, Group]]) -> IntervalEstimate:
    """Probability of improvement at the end, as a mean over tasks, stratified by task."""
    own, other = zip(*((own.test, other.test) for own, other in pairs), strict=True)
    return improvement_interval(own, other)


class Tried(NamedTuple):
    """A trial of the sweep, over the runs of it that are recorded."""

    score: float  # mean validation accuracy over the second half of the iterations
    test: float  # mean accuracy of the last policies on the test split
    error: float | None  # standard error of `test`; None of a single run


def sweep_trials(found: Outcomes, task: str, variant: str) -> dict[Trial, Tried]:
    """Every trial of which a run is recorded."""
    group = found.find("sweep", TASKS[task].config, variant)
    tried: dict[Trial, Tried] = {}
    for trial in found.experiment.every_trial:
        rate = float(f"{TASKS[task].learning_rate * trial.rate_factor:.6g}")
        runs = [
            run
            for run in (group.runs if group else ())
            if run["overrides"]["optimizer.learning_rate"] == rate
            and run["overrides"]["kl.coef"] == trial.kl_coef
        ]
        if runs:
            tests = [run["test"]["accuracy"] for run in runs]
            error = statistics.stdev(tests) / len(tests) ** 0.5 if len(tests) > 1 else None
            scores = [score(run) for run in runs]
            tried[trial] = Tried(statistics.fmean(scores), statistics.fmean(tests), error)
    return tried


def chosen_trial(found: Outcomes, task: str, variant: str) -> Trial | None:
    """The trial whose settings the comparison has; None before the sweep is complete."""
    return best_trial(found.experiment, task, variant, found.used)


class GroupCurve(NamedTuple):
    """Interquartile mean over runs at every evaluation; `x` is the median over runs."""

    x: list[float]
    accuracy: list[float]
    end: IntervalEstimate  # at the last evaluation


def group_curve(group: Group, axis: Axis) -> GroupCurve | None:
    """The curve of a group on an axis, as far as all its runs have evaluations."""
    positions = [group.positions(run, axis) for run in group.runs]
    known = [own for own in positions if own is not None]
    if len(known) < len(group.runs):
        return None
    columns = aligned(known, [run["curve"]["accuracy"] for run in group.runs])
    means = [interquartile_mean([scores]) for _, scores in columns]
    return GroupCurve([x for x, _ in columns], means, iqm_interval([columns[-1][1]]))
