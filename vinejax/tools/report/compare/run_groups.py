"""Groups runs that differ only in their seed, and computes curves and totals of the groups."""

import os
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from vinejax.runtime.workdir import FREE_FIELDS, free_groups
from vinejax.tools.report.compare.read_runs import ComparedRun
from vinejax.tools.report.interquartile import IntervalEstimate, iqm_interval
from vinejax.tools.report.learning_curve import EvaluationPoint, aligned

# Fields that may change between two starts of one run, for instance by --mode=eval, although they
# change what the run learns or the accuracy on its curve.
LEARNT_FIELDS = ("iterations", "budget.", "eval.")
IDLE_FIELDS = tuple(
    {*FREE_FIELDS, *free_groups(), "eval.samples", "eval.problems"} - set(LEARNT_FIELDS)
)


class CurvePoint(NamedTuple):
    """A point of a group's curve: the place on an axis, and the accuracy with an interval."""

    x: float
    accuracy: IntervalEstimate


class RunGroup(NamedTuple):
    """At least one run; all have the same settings except for the seed."""

    name: str
    runs: list[ComparedRun]

    @property
    def num_seeds(self) -> int:
        return len({run.settings["seed"] for run in self.runs})

    @property
    def label(self) -> str:
        if len(self.runs) == 1:
            return self.name
        if self.num_seeds == len(self.runs):
            return f"{self.name}, {self.num_seeds} seeds"
        seeds = f"{self.num_seeds} seeds" if self.num_seeds > 1 else "1 seed"
        return f"{self.name}, {len(self.runs)} runs of {seeds}"

    def total(self, axis: str) -> float:
        """The place on `axis` of a run's last evaluation, as the median over the runs."""
        return statistics.median(getattr(run.curve[-1], axis) for run in self.runs)

    def end(self, axis: str) -> float:
        """The place on `axis` of a run's last evaluation, as the minimum over the runs."""
        return min(getattr(run.curve[-1], axis) for run in self.runs)

    def curve(self, axis: str) -> list[CurvePoint]:
        """Validation accuracy at the n-th evaluation, for every n that all runs have reached.

        A point of several runs has the interquartile mean, an interval over seeds, and the median
        of the runs' places on `axis`. For one run, the interval is over problems.
        """
        if len(self.runs) == 1:
            points = self.runs[0].curve
            return [
                CurvePoint(getattr(p, axis), IntervalEstimate(p.accuracy, p.low, p.high))
                for p in points
            ]
        curves = self._comparable()
        x = [[getattr(point, axis) for point in curve] for curve in curves]
        accuracy = [[point.accuracy for point in curve] for curve in curves]
        return [CurvePoint(at, iqm_interval([scores])) for at, scores in aligned(x, accuracy)]

    def _comparable(self) -> list[list[EvaluationPoint]]:
        """The evaluations of each run without those after iterations that another run lacks.

        A run that was extended after its end has one more there, and so has a run whose
        `eval.every` was another. With a budget, runs may end after different iterations, and all
        evaluations stay.
        """
        curves = [run.curve for run in self.runs]
        shared = set.intersection(*({point.iteration for point in curve} for curve in curves))
        if not shared or self.runs[0].settings["budget.episodes"] is not None:
            return curves
        return [[point for point in curve if point.iteration in shared] for curve in curves]

    @property
    def test(self) -> list[float] | None:
        """Test accuracies of the runs after their last iterations; None if one is missing."""
        accuracies = [run.test for run in self.runs if run.test is not None]
        return accuracies if len(accuracies) == len(self.runs) else None

    @property
    def rewards(self) -> dict[str, list[float]] | None:
        """Maps test problems to the rewards of all runs together; None if no run has `rewards`."""
        per_run = [run.rewards for run in self.runs if run.rewards is not None]
        pooled: dict[str, list[float]] = {}
        for rewards in per_run:
            for problem, samples in rewards.items():
                pooled.setdefault(problem, []).extend(samples)
        return pooled or None


def group_runs(runs: Sequence[ComparedRun]) -> list[RunGroup]:
    """Groups runs whose settings are equal except for the seed; groups keep the order of runs."""
    groups: dict[str, list[ComparedRun]] = {}
    for run in runs:
        learnt_settings = {name: x for name, x in run.settings.items() if not _is_idle(name)}
        learnt_settings.pop("seed", None)
        groups.setdefault(repr(sorted(learnt_settings.items())), []).append(run)
    return [
        RunGroup(name, members)
        for name, members in zip(_names(list(groups.values())), groups.values(), strict=True)
    ]


def differing_settings(groups: Sequence[RunGroup]) -> list[tuple[str, list[str]]]:
    """Dotted name and values, one per group, of each setting that differs between groups."""
    settings = [group.runs[0].settings for group in groups]
    names = sorted({name for s in settings for name in s if not _is_idle(name)} - {"seed"})
    rows = [(name, [_shown(s.get(name)) for s in settings]) for name in names]
    revisions = [", ".join(sorted({run.revision[:10] for run in g.runs})) for g in groups]
    rows.append(("git revision", revisions))
    return [row for row in rows if len(set(row[1])) > 1]


def _is_idle(name: str) -> bool:
    return name.startswith(IDLE_FIELDS)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value or '""'
    return "none" if value is None else str(value)


def _names(groups: Sequence[Sequence[ComparedRun]]) -> list[str]:
    """Names for the groups.

    A group has the common prefix of its runs' names as its name. If this prefix is empty, or
    another group has the same prefix, the group has the name of its first run.
    """
    names = []
    for runs in groups:
        prefix = os.path.commonprefix([run.name for run in runs])
        if len(runs) > 1:
            prefix = prefix.rstrip("_-. /=")
        names.append(prefix)
    return [
        name if name and names.count(name) == 1 else runs[0].name
        for name, runs in zip(names, groups, strict=True)
    ]
