"""The same problems in several runs: a solution of each run, side by side."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from etils import epath
from markupsafe import Markup

from vinejax.core.types import is_correct
from vinejax.report import text
from vinejax.report.figure import episode_svg
from vinejax.report.read import JsonObject, finite_number, read_episodes

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


class Solution(NamedTuple):
    """An episode, with its line in the file of its iteration."""

    line: int
    reward: float
    episode: JsonObject


Sampled = dict[str, list[Solution]]  # by problem


def same_problems(folders: Sequence[epath.Path], names: Sequence[str]) -> SameProblems | None:
    """Problems of the last iteration in which two runs or more have sampled the same ones.

    Those come first whose mean rewards differ most between the runs. `names` are those of the runs
    in `folders`, of which the first `MOST_RUNS` are looked at. None if there is no such iteration.
    """
    folders, names = folders[:MOST_RUNS], names[:MOST_RUNS]
    found = [_iterations(folder) for folder in folders]
    common = sorted({i for own in found for i in own if sum(i in x for x in found) > 1})
    for iteration in common[: -TRIED - 1 : -1]:
        sampled = [_solutions(folder, iteration) for folder in folders]
        counts = [problem for own in sampled for problem in own]
        shared = sorted({problem for problem in counts if counts.count(problem) > 1})
        if shared:
            shared.sort(key=lambda problem: -_difference(problem, sampled))
            runs = list(zip(names, sampled, strict=True))
            chosen = shared[:MOST_PROBLEMS]
            return SameProblems(iteration, [_sides(problem, iteration, runs) for problem in chosen])
    return None


def _sides(problem: str, iteration: int, runs: Sequence[tuple[str, Sampled]]) -> Shared:
    sides = [_side(name, own[problem], iteration) for name, own in runs if problem in own]
    return Shared(text.printable(problem), sides)


def _iterations(folder: epath.Path) -> set[int]:
    """The iterations of which a run has episodes."""
    files = (folder / "episodes").glob("*.jsonl")
    return {int(file.stem) for file in files if file.stem.isdecimal()}


def _solutions(folder: epath.Path, iteration: int) -> Sampled:
    """The solutions of an iteration by problem; those without a reward are left out."""
    found: Sampled = {}
    for line, episode in enumerate(read_episodes(folder / "episodes" / f"{iteration}.jsonl")):
        reward = finite_number(episode.get("reward"))
        if reward is not None:
            solution = Solution(line, reward, episode)
            found.setdefault(str(episode.get("problem_id")), []).append(solution)
    return found


def _difference(problem: str, sampled: Sequence[Sampled]) -> float:
    """The largest difference of mean rewards between two runs."""
    drawn = [own[problem] for own in sampled if problem in own]
    means = [statistics.fmean(solution.reward for solution in own) for own in drawn]
    return max(means) - min(means)


def _side(name: str, own: Sequence[Solution], iteration: int) -> Side:
    right = sum(is_correct(solution.reward) for solution in own)
    line, _, episode = own[0]
    figure = Markup(episode_svg(episode, iteration, f"s{iteration}-{line}"))  # it escapes
    return Side(name, f"{right} of {len(own)} right", figure)
