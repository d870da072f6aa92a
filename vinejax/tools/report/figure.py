"""Draws one solution as an SVG figure for a paper, with V(s), steps, credit and continuations.

The figure is one file, which needs no style sheet and no font file. Colours and sizes are SVG
attributes, and text is not converted to paths.
"""

import os
import re
import textwrap
from typing import NamedTuple

from etils import epath

from vinejax.core.errors import UserError
from vinejax.records import formats
from vinejax.records.read import JsonObject, discount_of, read_config, read_episodes
from vinejax.runtime.workdir import write_atomic
from vinejax.tools.report.build import environment
from vinejax.tools.report.vine_view import Limits, SolutionView, StepView, VineView, vine_view

LIMITS = Limits(1, 60, 100, 600, 0)
NAME = re.compile(r"s(\d+)-(\d+)")
WIDTH = 720
STEM = (30.0, 170.0)  # left and right end of the axis of V(s)
TEXT_LEFT = 200.0
COLUMNS = 58  # characters of a line of text
LINE = 15.0  # height of a line
DOT, DOTS = 9.0, 32  # distance between the dots of continuations, and number of dots in a row


class FigureMark(NamedTuple):
    """A dot for a continuation; the dot is filled if the continuation is correct."""

    x: float
    y: float
    is_correct: bool


class FigureRow(NamedTuple):
    """The state before a step, and the step itself, whose box reaches from `top` to `bottom`.

    A line joins this state, at (`start`, `node`), to the next row's state, at x = `end`.
    """

    step: StepView
    node: float
    value: str  # V(s); '' if states have no value
    dots: list[FigureMark]
    top: float
    bottom: float
    start: float | None
    end: float | None
    lines: list[tuple[float, str]]  # height of the base line, text
    credit: str  # the advantage as text; '' if the solution has no advantages


class Figure(NamedTuple):
    solution: SolutionView
    view: VineView
    rows: list[FigureRow]
    title: list[tuple[float, str]]
    axis: float  # height of the axis of V(s)
    nodes: list[float]  # heights of the states, the last one included
    end: float | None  # x of the last state
    height: float


def export_vine(workdir: str | os.PathLike, name: str) -> epath.Path:
    """Writes the figure of `vine_svg` to `<workdir>/vines/<name>.svg` and returns this path."""
    figure = vine_svg(workdir, name)
    file = epath.Path(workdir) / "vines" / f"{name}.svg"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, figure)
    return file


def vine_svg(workdir: str | os.PathLike, name: str) -> str:
    """A solution of a run as an SVG figure of 720 units width.

    `name` is s<iteration>-<line>, as in the links of the report, such as 's24-17', where <line> is
    the line number, from 0, in `episodes/<iteration>.jsonl`. The box of a step shows its first 600
    characters. The colour of the box shows the step's advantage A: blue above 0, orange below 0,
    and full colour from |A| = 1 on. The dots beside V(s) are the state's continuations; correct
    ones are filled. Of the gold answer the last line is shown. Raises UserError if the run has no
    such solution.
    """
    match = NAME.fullmatch(name)
    if not match:
        raise UserError(f"{name}: is no solution; the report links to each by a name like s24-17")
    iteration, line = int(match[1]), int(match[2])
    file = epath.Path(workdir) / "episodes" / f"{iteration}.jsonl"
    episodes = read_episodes(file)
    if line >= len(episodes):
        count = f"it has {len(episodes)}" if episodes else "there is no such file"
        if not epath.Path(workdir).is_dir():
            count = f"there is no workdir {workdir}"
        raise UserError(f"{name}: no line {line} (from 0) in {file}: {count}")
    gamma = discount_of(read_config(epath.Path(workdir)))
    return episode_svg(episodes[line], iteration, name, gamma)


def episode_svg(episode: JsonObject, iteration: int, name: str, gamma: float) -> str:
    """The figure of `vine_svg` for an episode; `name` is shown as the solution's name.

    `gamma` is the discount per step of the episode's run.
    """
    view = vine_view({iteration: [episode]}, LIMITS, gamma)
    assert view is not None, "there is an episode"
    template = environment().get_template("figure.html.j2")
    figure = _figure(view)
    # The view of a single episode has named it as line 0.
    figure = figure._replace(solution=figure.solution._replace(name=name))
    return template.render(figure=figure, width=WIDTH, left=STEM[0], right=STEM[1])


def _figure(view: VineView) -> Figure:
    solution = view.iterations[0].solutions[0]
    gold = solution.answer.text.strip().rpartition("\n")[2]  # without a worked solution before it
    heading = [*_wrapped(solution.question, 88), *_wrapped(formats.Clipped(f"gold: {gold}"), 88)]
    title = [(20 + LINE * i, line) for i, line in enumerate(heading)]
    axis = 20 + LINE * len(title) + 14
    rows, node = [], axis + 12
    for step in solution.steps:
        rows.append(_row(step, view, node))
        node = rows[-1].bottom + (8 if view.credit.values_by else 5)
    nodes = [*(row.node for row in rows), node]
    return Figure(solution, view, rows, title, axis, nodes, _place(solution.end), node + 34)


def _row(step: StepView, view: VineView, node: float) -> FigureRow:
    """The row of a step, with the step's state at the height `node` and the step's box below."""
    value, dots, top = "", [], node
    if view.credit.values_by:
        value = f"V {step.value}" + (f" ± {step.error}" if step.error else "")
        dots = [
            FigureMark(
                TEXT_LEFT + 100 + DOT * (i % DOTS),
                node + DOT * (i // DOTS),
                leaf.verdict.kind == "correct",
            )
            for i, leaf in enumerate(step.leaves)
        ]
        top = max([node, *(dot.y for dot in dots)]) + 8
    wrapped = enumerate(_wrapped(step.text, COLUMNS), start=1)
    lines = [(top + 2 + LINE * i, line) for i, line in wrapped]
    credit = ""
    if view.credit.has_advantages:
        error = f" ± {step.advantage_error}" if step.advantage_error else ""
        credit = f"A {step.advantage}{error}"
    bottom = lines[-1][0] + 8
    start, end = _place(step.start), _place(step.end)
    return FigureRow(step, node, value, dots, top, bottom, start, end, lines, credit)


def _place(percent: float | None) -> float | None:
    """The x coordinate of the point at `percent` of the axis of V(s); None for None."""
    return None if percent is None else round(STEM[0] + percent / 100 * (STEM[1] - STEM[0]), 1)


def _wrapped(clipped: formats.Clipped, columns: int) -> list[str]:
    shown = clipped.text.strip("\n") + (" …" if clipped.hidden else "")
    return [
        line
        for part in shown.split("\n")
        for line in textwrap.wrap(part, columns, drop_whitespace=False, tabsize=4) or [""]
    ]
