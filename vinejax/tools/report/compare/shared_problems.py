"""Finds problems that several runs have sampled, and makes a figure of a solution of each run."""

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from etils import epath
from markupsafe import Markup

from vinejax.core.types import is_correct
from vinejax.records import formats
from vinejax.records.read import (
    JsonObject,
    discount_of,
    finite_number,
    read_config,
    read_episodes,
)
from vinejax.tools.report.figure import episode_svg

MAX_PROBLEMS = 4
MAX_RUNS = 6
MAX_ITERATIONS = 20  # iterations searched, backwards from the last that two runs have in common


class RunSide(NamedTuple):
    """A run's first solution of a problem.

    `right` tells how many of the run's solutions of this problem are right.
    """

    run: str
    right: str
    figure: Markup  # SVG


class SharedProblem(NamedTuple):
    """A problem that several runs have sampled in the same iteration."""

    problem: str
    sides: list[RunSide]


class SameProblems(NamedTuple):
    iteration: int
    problems: list[SharedProblem]


class SharedSolution(NamedTuple):
    """An episode with its reward, and with its line number in the file of its iteration.

    Line numbers begin at 0.
    """

    line: int
    reward: float
    episode: JsonObject


Sampled = dict[str, list[SharedSolution]]  # problem -> its solutions


def same_problems(folders: Sequence[epath.Path], names: Sequence[str]) -> SameProblems | None:
    """The problems that at least two runs have sampled in the same iteration.

    The iteration is the last in which such problems are found; at most MAX_ITERATIONS iterations
    are searched. Problems whose mean rewards differ most between the runs come first. `folders` are
    the workdirs of the runs `names`; only the first `MAX_RUNS` are searched. The result is None if
    no problem is found.
    """
    folders, names = folders[:MAX_RUNS], names[:MAX_RUNS]
    gammas = [discount_of(read_config(folder)) for folder in folders]
    per_run = [_iterations(folder) for folder in folders]
    num_runs = Counter(itertools.chain.from_iterable(per_run))
    common = sorted(i for i, count in num_runs.items() if count > 1)
    for iteration in common[: -MAX_ITERATIONS - 1 : -1]:
        sampled = [_solutions(folder, iteration) for folder in folders]
        counts = Counter(itertools.chain.from_iterable(sampled))
        shared = sorted(problem for problem, count in counts.items() if count > 1)
        if shared:
            shared.sort(key=lambda problem: -_difference(problem, sampled))
            problems = []
            for problem in shared[:MAX_PROBLEMS]:
                groups = [by_problem.get(problem) for by_problem in sampled]
                sides = [
                    _side(name, group, iteration, gamma)
                    for name, group, gamma in zip(names, groups, gammas, strict=True)
                    if group
                ]
                problems.append(SharedProblem(formats.printable(problem), sides))
            return SameProblems(iteration, problems)
    return None


def _iterations(folder: epath.Path) -> set[int]:
    """The iterations whose episodes a run has written."""
    files = (folder / "episodes").glob("*.jsonl")
    return {int(file.stem) for file in files if file.stem.isdecimal()}


def _solutions(folder: epath.Path, iteration: int) -> Sampled:
    """Maps problems to a run's solutions in an iteration; solutions without reward are left out."""
    solutions: Sampled = {}
    for line, episode in enumerate(read_episodes(folder / "episodes" / f"{iteration}.jsonl")):
        reward = finite_number(episode.get("reward"))
        if reward is not None:
            solution = SharedSolution(line, reward, episode)
            solutions.setdefault(str(episode.get("problem_id")), []).append(solution)
    return solutions


def _difference(problem: str, sampled: Sequence[Sampled]) -> float:
    """The largest difference between two runs in the mean reward of a problem's solutions."""
    groups = [by_problem[problem] for by_problem in sampled if problem in by_problem]
    means = [statistics.fmean(solution.reward for solution in group) for group in groups]
    return max(means) - min(means)


def _side(name: str, solutions: Sequence[SharedSolution], iteration: int, gamma: float) -> RunSide:
    right = sum(is_correct(solution.reward) for solution in solutions)
    line, _, episode = solutions[0]
    figure = episode_svg(episode, iteration, f"s{iteration}-{line}", gamma)
    return RunSide(name, f"{right} of {len(solutions)} right", Markup(figure))  # it is escaped
