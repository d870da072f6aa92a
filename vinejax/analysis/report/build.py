"""A run's workdir to its `report.html`: read, make view models, render, write."""

import dataclasses
import os
import pathlib
from typing import Any

import jinja2
from etils import epath

from vinejax.analysis.report import curves, text, timing
from vinejax.analysis.report import vine as vines
from vinejax.analysis.report.read import Record, Run, read_run

MAX_BYTES = 4_500_000
FACTS = (("method", "method"), ("model.path", "model"), ("values.k", "K"), ("seed", "seed"))


@dataclasses.dataclass(frozen=True)
class End:
    """A measure at one end of a run; `place` is its low, value and high in percent of [0, 1]."""

    value: str
    interval: str
    place: tuple[float, float, float]


@dataclasses.dataclass(frozen=True)
class Score:
    """A measure at the start and at the end; one end where it was taken once."""

    title: str
    ends: list[End]


@dataclasses.dataclass(frozen=True)
class Headline:
    scores: list[Score]
    counts: list[tuple[str, str, str]]  # label, number, note


def build_report(workdir: str | os.PathLike) -> epath.Path:
    """Writes `<workdir>/report.html` and returns its path.

    The page is one file of at most 4.5 MB that loads nothing and runs no script. A reader never
    sees half of it: it is written aside and moved into place.
    """
    folder = epath.Path(workdir)
    page = render(read_run(folder))
    target, aside = folder / "report.html", folder / ".report.html.tmp"
    aside.write_bytes(page.encode("utf-8"))
    return aside.replace(target)


def render(run: Run) -> str:
    """The page of a run, with as much of its episodes as fits `MAX_BYTES`."""
    template = _environment().get_template("report.html.j2")
    time = timing.time_chart(run.records)
    known: dict[str, Any] = {
        "run": run,
        "facts": facts(run.config),
        "settings": settings(run.config),
        "headline": headline(run.records, time),
        "charts": curves.charts(run.records),
        "time": time,
    }
    *generous, tightest = vines.LIMITS
    for limits in generous:
        if sum(vines.least_size(found, limits) for found in run.episodes.values()) > MAX_BYTES:
            continue
        page = template.render(known, vine=vines.vine(run.episodes, limits))
        if len(page.encode("utf-8")) <= MAX_BYTES:
            return page
    return template.render(known, vine=vines.vine(run.episodes, tightest))


def headline(records: list[Record], time: timing.TimeChart | None) -> Headline:
    """The numbers at the top: the measures from start to end, and what the run cost."""
    scores = [
        _score("Test pass@1", "test/pass_at_1", records),
        _score("Eval pass@1", "eval/pass_at_1", records),
    ]
    train = [r for r in records if r.stage == "train"]
    counts = []
    if train:
        counts.append(("Iterations", f"{len(train):,}", ""))
    if time is not None:
        largest = max(time.phases, key=lambda phase: phase.share)
        note = f"{largest.share:.0%} in the {largest.name} phase"
        counts.append(("Time in training", text.duration(time.total), note))
    rollouts = sum(r.values.get("values/rollouts", 0.0) for r in train)
    if rollouts:
        counts.append(("Continuations graded", text.short(rollouts), "for step values"))
    return Headline([s for s in scores if s is not None], counts)


def settings(config: dict[str, Any]) -> list[tuple[str, str]]:
    """The resolved configuration as dotted names, then versions and the git revision."""
    flat = list(_flatten(config.get("config"), ""))
    flat += [(f"version of {name}", v) for name, v in _flatten(config.get("versions"), "")]
    if config.get("git_revision"):
        flat.append(("git revision", text.clip(config["git_revision"], 80).text))
    return flat


def facts(config: dict[str, Any]) -> list[tuple[str, str]]:
    """The few settings that the header names."""
    flat = dict(settings(config))
    if flat.get("method", "vineppo") != "vineppo":
        flat.pop("values.k", None)
    found = [(label, flat[name]) for name, label in FACTS if name in flat]
    if "git revision" in flat:
        found.append(("git", flat["git revision"][:10]))
    return found


def _flatten(tree: object, prefix: str):
    if isinstance(tree, dict) and tree:
        for name, value in tree.items():
            yield from _flatten(value, f"{prefix}.{name}" if prefix else str(name))
    elif prefix:
        yield text.printable(prefix), text.clip("none" if tree is None else tree, 400).text


def _score(title: str, key: str, records: list[Record]) -> Score | None:
    stage = key.split("/")[0]
    found = [r.values for r in records if r.stage == stage and key in r.values]
    ends = found if len(found) < 2 else [found[0], found[-1]]
    return Score(title, [_end(key, values) for values in ends]) if ends else None


def _end(key: str, values: dict[str, float]) -> End:
    value, low, high = values[key], values.get(f"{key}_low"), values.get(f"{key}_high")
    if low is None or high is None:
        place = _percent(value)
        return End(f"{value:.3f}", "", (place, place, place))
    place = _percent(low), _percent(value), _percent(high)
    return End(f"{value:.3f}", f"[{low:.3f}, {high:.3f}]", place)


def _percent(value: float) -> float:
    return round(100 * min(1.0, max(0.0, value)), 1)


def _environment() -> jinja2.Environment:
    """Autoescape is on for every template: what a model wrote is shown and never interpreted."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
