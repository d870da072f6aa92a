"""Runs from Python: `vinejax.train` starts or resumes a run, and notebooks show the result."""

import copy
import dataclasses
import html
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from vinejax.config.checks import check_config
from vinejax.config.load import Fields, default_workdir, fields_set, from_dict, load, override
from vinejax.core.errors import ConfigError, UserError
from vinejax.core.plugins import find_function
from vinejax.core.settings import Config
from vinejax.runtime.workdir import path_of
from vinejax.training.announce import SPLITS

WIDTH, HEIGHT, EDGE = 360, 120, 8  # of the curve, in pixels


def train(
    config: str | os.PathLike | Fields | Config,
    overrides: Mapping[str, Any] | None = None,
    workdir: str | os.PathLike | None = None,
) -> "RunSummary":
    """Trains as the command does: from the start, or from the newest checkpoint in `workdir`.

    `config` is the path of a config file ('configs/tiny.py', or 'FILE:ARGUMENT'), the result of
    `default()` of `vinejax.config`, or a `Config`. `overrides` are fields by their dotted names, as
    after `--config.` on the command line; a `Config` takes no overrides (use
    `dataclasses.replace`). Without `workdir` the run of a file is in runs/<name of the file>.
    `config` is not changed.

    Raises a UserError of one line for a run that cannot start, before anything is written. Unlike
    the command, the function handles no signals: after Ctrl-C, which raises KeyboardInterrupt at
    once, another call goes on from the newest checkpoint (`checkpoint.every`).

    Example:
      >>> run = vinejax.train("configs/tiny.py", {"iterations": 5})  # doctest: +SKIP
      >>> run.start_accuracy, run.final_accuracy  # doctest: +SKIP
      ({'validation': 0.395, 'test': 0.384}, {'validation': 0.52, 'test': 0.51})
    """
    from vinejax.config.mesh_row import with_row_for_devices
    from vinejax.training.loop import train as run_loop

    find_function.cache_clear()  # a notebook may have defined a reward anew
    if not isinstance(overrides or {}, Mapping):
        raise UserError(f"overrides: give a dict such as {{'iterations': 5}}, not {overrides!r}")
    cfg, given = _checked_config(config, overrides or {})
    check_config(cfg, given)
    if workdir is None:
        if not isinstance(config, str | os.PathLike):
            raise UserError(
                "workdir: name the folder of the run, or give the path of a config file"
            )
        workdir = default_workdir(os.fspath(config))
    return run(run_loop(with_row_for_devices(cfg), os.path.expanduser(workdir)))


def _checked_config(
    config: str | os.PathLike | Fields | Config, overrides: Mapping[str, Any]
) -> tuple[Config, set[str]]:
    """(`config` with `overrides`, as a `Config`; names of the fields that were set)."""
    if isinstance(config, Config):
        if overrides:
            message = "a Config takes no overrides: dataclasses.replace gives a changed one"
            raise ConfigError(next(iter(overrides)), message)
        return config, set()
    fields = copy.deepcopy(config) if isinstance(config, Fields) else load(os.fspath(config))
    override(fields, overrides)
    return from_dict(fields), fields_set(fields)


def run(workdir: str | os.PathLike) -> "RunSummary":
    """The records that the run in a workdir has written so far. The run may still be going on.

    Raises UserError if there is no run.

    Example:
      >>> vinejax.run("runs/tiny").final_accuracy["test"]  # doctest: +SKIP
      0.896
    """
    from vinejax.records.read import holds_run, read_run

    folder = path_of(workdir)
    if not holds_run(folder):
        raise UserError(f"{folder}: holds no run (there is no config.json of one)")
    records = read_run(folder, max_iterations=0)
    metrics = [
        {"stage": record.stage, "iteration": record.position, **record.values}
        for record in records.records
    ]
    return RunSummary(folder, metrics)


@dataclasses.dataclass(frozen=True, repr=False)
class RunSummary:
    """The records of a run: accuracies, metrics and files. A notebook shows them as a table.

    `metrics` has the records of metrics.jsonl in order. Each record is a dict with 'stage',
    'iteration' and numbers, whose names are in docs/metrics.md.

    Example:
      >>> from etils import epath
      >>> metrics = [{"stage": "eval", "iteration": 0, "eval/pass_at_1": 0.395}]
      >>> vinejax.RunSummary(epath.Path("runs/tiny"), metrics).start_accuracy
      {'validation': 0.395}
    """

    workdir: epath.Path
    metrics: list[dict[str, Any]]

    @property
    def start_accuracy(self) -> dict[str, float]:
        """pass@1 by split ('validation', 'test') at the first evaluation, if there was one."""
        return {split: values[0] for split, values in self._accuracies().items()}

    @property
    def final_accuracy(self) -> dict[str, float]:
        """pass@1 by split ('validation', 'test') at the last evaluation, if there was one."""
        return {split: values[-1] for split, values in self._accuracies().items()}

    @property
    def report(self) -> epath.Path:
        """The page of the run for a browser, renewed while the run goes on and when it ends."""
        return self.workdir / "report.html"

    @property
    def iterations(self) -> int:
        """The number of finished iterations."""
        trained = [record["iteration"] for record in self.metrics if record["stage"] == "train"]
        return max(trained, default=-1) + 1

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """(iterations, values) of the metric `name`, such as 'reward/mean' or 'eval/pass_at_1'.

        Raises a KeyError that names the nearest metric if the run has not recorded `name`.
        """
        records = [record for record in self.metrics if name in record]
        if not records:
            from vinejax.core.errors import nearest_hint

            known = dict.fromkeys(key for record in self.metrics for key in record)
            raise KeyError(f"no metric {name!r}{nearest_hint(name, known)}")
        return [record["iteration"] for record in records], [record[name] for record in records]

    def _accuracies(self) -> dict[str, list[float]]:
        accuracies = {
            split: [record[name] for record in self.metrics if name in record]
            for split, name in SPLITS.items()
        }
        return {split: values for split, values in accuracies.items() if values}

    def __repr__(self) -> str:
        parts = [
            f"{split} pass@1 {values[0]:.3f} to {values[-1]:.3f}"
            for split, values in self._accuracies().items()
        ]
        name = os.fspath(self.workdir)
        return f"RunSummary({', '.join([name, f'{self.iterations} iterations', *parts])})"

    def _repr_html_(self) -> str:
        """A table of accuracies with their 95% intervals, and the validation curve."""
        rows = [
            f"<tr><td>{split}</td><td>{_with_interval(records[0], name)}</td>"
            f"<td>{_with_interval(records[-1], name)}</td></tr>"
            for split, name in SPLITS.items()
            if (records := [record for record in self.metrics if name in record])
        ]
        title = f"{self.iterations} iterations in {html.escape(os.fspath(self.workdir))}"
        head = "<tr><th>pass@1 (95% interval)</th><th>start</th><th>now</th></tr>"
        table = f"<table>{head}{''.join(rows)}</table>" if rows else "<p>not evaluated yet</p>"
        name = SPLITS["validation"]
        points = [(r["iteration"], r[name]) for r in self.metrics if name in r]
        report = Path(os.fspath(self.report))
        page = f"<p>its page: {html.escape(os.fspath(report))}</p>" if report.exists() else ""
        return f"<div><p>{title}</p>{table}{_curve(points)}{page}</div>"


def _with_interval(record: Mapping[str, Any], name: str) -> str:
    """A metric with its 95% interval, as in '38.4% (35.1 to 41.6)'.

    If the interval was not recorded, the text has only the metric.
    """
    value = f"{100 * record[name]:.1f}%"
    ends = [record.get(f"{name}_{end}") for end in ("low", "high")]
    low, high = ends
    if low is None or high is None:
        return value
    return f"{value} ({100 * low:.1f} to {100 * high:.1f})"


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """An SVG of accuracies from 0 to 1 over iterations; '' for fewer than two points."""
    if len(points) < 2 or points[-1][0] <= points[0][0]:
        return ""
    first, last = points[0][0], points[-1][0]
    room = WIDTH - 2 * EDGE, HEIGHT - 2 * EDGE
    places = [
        (EDGE + (x - first) / (last - first) * room[0], EDGE + (1 - y) * room[1]) for x, y in points
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    marks = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places)
    label = f"validation pass@1, iteration {first:g} to {last:g}, from 0 to 1"
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{label}" '
        f'fill="currentColor" stroke="currentColor"><title>{label}</title>'
        f'<path d="M{EDGE} {EDGE}V{HEIGHT - EDGE}H{WIDTH - EDGE}" fill="none" opacity="0.4"/>'
        f'<polyline points="{line}" fill="none" stroke-width="2"/>{marks}</svg>'
    )
