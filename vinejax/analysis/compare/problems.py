"""The same problems in several runs: a solution of each run, side by side."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from etils import epath
from markupsafe import Markup

from vinejax.analysis.report import text
from vinejax.analysis.report.figure import vine_svg
from vinejax.analysis.report.read import finite_number, read_episodes

MOST_PROBLEMS = 4
MOST_RUNS = 6
TRIED = 20  # iterations, the last that the runs have in common


class Side(NamedTuple):
    """A run's part: its first solution of the problem, and how many of all were right."""

    run: str
    right: str
    figure: Markup  # SVG


class Shared(NamedTuple):
    """A problem that several runs have sampled in the same iteration."""

    problem: str
    sides: list[Side]


class SameProblems(NamedTuple):
    iteration: int
    problems: list[Shared]


Lines = dict[str, list[tuple[int, float]]]  # problem -> (line, reward) of its solutions


def same_problems(folders: Sequence[epath.Path], names: Sequence[str]) -> SameProblems | None:
    """Problems of the last iteration in which two runs or more have sampled the same ones.

    Those come first whose mean rewards differ most between the runs. `names` are those of the runs
    in `folders`, of which the first `MOST_RUNS` are looked at. None if there is no such iteration.
    """
    folders, names = folders[:MOST_RUNS], names[:MOST_RUNS]
    found = [_iterations(folder) for folder in folders]
    common = sorted({i for own in found for i in own if sum(i in x for x in found) > 1})
    for iteration in common[: -TRIED - 1 : -1]:
        sampled = [_lines(folder, iteration) for folder in folders]
        counts = [problem for lines in sampled for problem in lines]
        shared = sorted({problem for problem in counts if counts.count(problem) > 1})
        if shared:
            shared.sort(key=lambda problem: -_difference(problem, sampled))
            runs = list(zip(folders, names, sampled, strict=True))
            chosen = shared[:MOST_PROBLEMS]
            return SameProblems(iteration, [_sides(problem, iteration, runs) for problem in chosen])
    return None


def _sides(problem: str, iteration: int, runs: Sequence[tuple[epath.Path, str, Lines]]) -> Shared:
    sides = [_side(*run, problem, iteration) for run in runs if problem in run[2]]
    return Shared(text.printable(problem), sides)


def _iterations(folder: epath.Path) -> set[int]:
    """The iterations of which a run has episodes."""
    files = (folder / "episodes").glob("*.jsonl")
    return {int(file.stem) for file in files if file.stem.isdecimal()}


def _lines(folder: epath.Path, iteration: int) -> Lines:
    """The solutions of an iteration by problem; those without a reward are left out."""
    found: Lines = {}
    for line, episode in enumerate(read_episodes(folder / "episodes" / f"{iteration}.jsonl")):
        reward = finite_number(episode.get("reward"))
        if reward is not None:
            found.setdefault(str(episode.get("problem_id")), []).append((line, reward))
    return found


def _difference(problem: str, sampled: Sequence[Lines]) -> float:
    """The largest difference of mean rewards between two runs."""
    means = [
        statistics.fmean(x for _, x in lines[problem]) for lines in sampled if problem in lines
    ]
    return max(means) - min(means)


def _side(folder: epath.Path, name: str, lines: Lines, problem: str, iteration: int) -> Side:
    own = lines[problem]
    right = sum(reward >= 1 for _, reward in own)
    figure = Markup(vine_svg(folder, f"s{iteration}-{own[0][0]}"))  # its template escapes
    return Side(name, f"{right} of {len(own)} right", figure)
