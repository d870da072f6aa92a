"""Builds `report.html` from the files of a run's workdir."""

import base64
import functools
import hashlib
import os
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import jinja2
from etils import epath
from markupsafe import Markup

from vinejax.records import formats
from vinejax.records.read import (
    COMPARISON,
    JsonObject,
    Record,
    RunRecords,
    discount_of,
    read_run,
)
from vinejax.runtime.display import format_duration
from vinejax.runtime.workdir import flatten_names, write_atomic
from vinejax.tools.report import curves, timing
from vinejax.tools.report.bench import bench_view
from vinejax.tools.report.comparison import comparison_view
from vinejax.tools.report.summary_line import Standing, standing_of
from vinejax.tools.report.vine_view import LIMITS, least_size, vine_view
from vinejax.tools.report.x_axes import charts_along

PAGE = "report.html"
FOLDER = pathlib.Path(__file__).parent
MAX_BYTES = 4_500_000
FACTS = (
    ("method", "method"),
    ("model.path", "model"),
    ("values.k", "continuations per state (K)"),
    ("seed", "seed"),
)


class ScoreEnd(NamedTuple):
    """A score at the start or end of a run.

    `place` has the lower end of the score's interval, the score, and the upper end, in percent of a
    bar.
    """

    value: str
    interval: str
    place: tuple[float, float, float]


class Score(NamedTuple):
    """A score, such as test pass@1, at the start and the end of a run.

    If the score was measured only once, `ends` has one entry.
    """

    title: str
    ends: list[ScoreEnd]


class Headline(NamedTuple):
    scores: list[Score]
    counts: list[tuple[str, str, str]]  # (label, number, note)


class Script(NamedTuple):
    """An inline script and its digest, by which the page's Content-Security-Policy allows it."""

    code: Markup
    digest: str


def build_report(workdir: str | os.PathLike) -> epath.Path:
    """Writes `<workdir>/report.html` and returns its path.

    The page is one file of at most 4.5 MB, which loads no other file. The page of a running run
    reloads itself; other pages have no script.
    """
    folder = epath.Path(workdir)
    file = folder / PAGE
    write_atomic(file, render_page(read_run(folder)))
    return file


def render_page(run: RunRecords) -> str:
    """The page of a run as HTML.

    LIMITS are limits of how much of the episodes is shown, from wide to tight. The page uses the
    first with which it is not larger than `MAX_BYTES`, or else the last.
    """
    template = environment().get_template("report.html.j2")
    time, gamma = timing.time_chart(run.records), discount_of(run.config)
    bench, comparison = bench_view(run.bench), comparison_view(run.comparison)
    standing = standing_of(run.status)
    context: dict[str, object] = {
        "run": run,
        "standing": standing,
        "script": live_script(standing),
        "is_unconfined": dict(_printable(run.config.get("config"))).get("code.sandbox") == "none",
        "facts": header_facts(run.config),
        "settings": resolved_settings(run.config),
        "headline": headline(run.records, time),
        "charts": curves.charts(run.records, temperatures(run.config)),
        "along": charts_along(run.records),
        "time": time,
        "bench": bench,
        "comparison": comparison,
        "sources": source_files(bench is not None, comparison is not None),
    }
    *wider_limits, tightest = LIMITS
    for limits in wider_limits:
        if sum(least_size(rows, limits) for rows in run.episodes.values()) > MAX_BYTES:
            continue
        page = template.render(context, vine=vine_view(run.episodes, limits, gamma))
        if len(page.encode("utf-8")) <= MAX_BYTES:
            return page
    return template.render(context, vine=vine_view(run.episodes, tightest, gamma))


def source_files(has_bench: bool, has_comparison: bool) -> str:
    """Names the files, besides metrics.jsonl, that the page is made from, as in 'a, b and c'."""
    records = [("credit/bench.json", has_bench), (COMPARISON, has_comparison)]
    names = ["episodes/", "config.json", *(name for name, exists in records if exists)]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def live_script(standing: Standing | None) -> Script | None:
    """The script of a page that reloads itself; None if the page does not reload."""
    if standing is None or standing.reload_s is None:
        return None
    code = (FOLDER / "live.html.j2").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    return Script(Markup(code), digest)


@functools.cache
def environment(*folders: pathlib.Path) -> jinja2.Environment:
    """The Jinja environment of the templates in `folders` and in this file's folder.

    Autoescaping is on, so a browser shows a model's text and never interprets it as HTML.
    """
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, FOLDER]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def headline(records: list[Record], time: timing.TimeChart | None) -> Headline:
    """The numbers at the top of the page, such as accuracies at the start and end of the run."""
    scores = [
        _score("Test pass@1", "test/pass_at_1", records),
        _score("Validation pass@1", "eval/pass_at_1", records),
    ]
    train = [r for r in records if r.stage == "train"]
    counts = []
    if train:
        counts.append(("Iterations", f"{len(train):,}", ""))
    if time is not None:
        largest = max(time.phases, key=lambda phase: phase.share)
        note = f"{largest.share:.0%} in the {largest.name} phase"
        counts.append(("Time in training", format_duration(time.total), note))
    rollouts = sum(r.values.get("values/rollouts", 0.0) for r in train)
    if rollouts:
        counts.append(("Continuations graded", formats.three_digits(rollouts), "for step values"))
    return Headline([s for s in scores if s is not None], counts)


def resolved_settings(config: JsonObject) -> list[tuple[str, str]]:
    """Names and values of the resolved configuration, the versions and the git revision."""
    flat = list(_printable(config.get("config")))
    flat += [(f"version of {name}", v) for name, v in _printable(config.get("versions"))]
    if config.get("git_revision"):
        flat.append(("git revision", formats.clip(config["git_revision"], 80).text))
    return flat


def temperatures(config: JsonObject) -> tuple[str, str] | None:
    """The temperatures of training and evaluation as text; None if one of them is not recorded."""
    flat = dict(_printable(config.get("config")))
    training, evaluation = flat.get("sample.temperature"), flat.get("eval.temperature")
    return (training, evaluation) if training and evaluation else None


def header_facts(config: JsonObject) -> list[tuple[str, str]]:
    """Labels and values of the facts in the page's header, such as the method and the seed."""
    flat = dict(resolved_settings(config))
    if flat.get("method", "vineppo") != "vineppo":
        flat.pop("values.k", None)
    facts = [(label, flat[name]) for name, label in FACTS if flat.get(name)]
    if "git revision" in flat:
        facts.append(("git", flat["git revision"][:10]))
    return facts


def _printable(tree: object) -> Iterator[tuple[str, str]]:
    """Yields dotted names and values of a tree of JSON objects; nothing if `tree` is no object."""
    if isinstance(tree, dict):
        for name, value in flatten_names(tree).items():
            yield (
                formats.printable(name),
                formats.clip("none" if value is None else value, 400).text,
            )


def _score(title: str, key: str, records: list[Record]) -> Score | None:
    stage = key.split("/")[0]
    taken = [r.values for r in records if r.stage == stage and key in r.values]
    ends = taken if len(taken) < 2 else [taken[0], taken[-1]]
    return Score(title, [_end(key, values) for values in ends]) if ends else None


def _end(key: str, values: dict[str, float]) -> ScoreEnd:
    value, low, high = values[key], values.get(f"{key}_low"), values.get(f"{key}_high")
    if low is None or high is None:
        place = _percent(value)
        return ScoreEnd(f"{value:.3f}", "", (place, place, place))
    place = _percent(low), _percent(value), _percent(high)
    return ScoreEnd(f"{value:.3f}", f"[{low:.3f}, {high:.3f}]", place)


def _percent(value: float) -> float:
    return round(100 * min(1.0, max(0.0, value)), 1)
