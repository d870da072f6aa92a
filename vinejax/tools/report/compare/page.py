"""`--mode=compare` compares runs and writes `compare.html` and `compare.json`."""

import json
import os
import pathlib
from collections.abc import Sequence

from etils import epath

from vinejax.core.errors import UserError
from vinejax.records.read import COMPARISON, JsonObject
from vinejax.runtime.workdir import write_atomic
from vinejax.tools.report.build import build_report, environment
from vinejax.tools.report.compare import read_runs as read
from vinejax.tools.report.compare.record import comparison_of
from vinejax.tools.report.compare.run_groups import group_runs
from vinejax.tools.report.compare.shared_problems import SameProblems, same_problems
from vinejax.tools.report.comparison import ComparisonView, comparison_view

FILE = "compare.html"


def compare_runs(paths: Sequence[str], folder: str | os.PathLike) -> epath.Path:
    """Compares the runs of the workdirs `paths`; returns the path of `<folder>/compare.html`.

    Prints a line for each pair of groups, and a warning if runs of a group have the same seed. The
    numbers of the page go to `compare.json` in the same folder. If the folder is the workdir of a
    run, the report of that run is made again and shows the comparison. Raises UserError if
    `read_runs` does, or if the folder cannot be written.
    """
    runs = read.read_runs(paths)
    record = comparison_of(runs)
    for group in group_runs(runs):
        if group.num_seeds < len(group.runs):
            message = "runs of one seed may repeat each other; each counts (--config.seed)"
            print(f"warning: {group.label}: {message}")
    folders = [epath.Path(path).resolve() for path in paths]
    view = _whole_view(record)
    page = render_page(view, same_problems(folders, [run.name for run in runs]))
    target = epath.Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        write_atomic(target / FILE, page)
        write_atomic(target / COMPARISON, json.dumps(record, indent=1, allow_nan=False) + "\n")
        for pair in view.pairs:
            print(pair.line)
        print(f"compared: {target / FILE}")
        if (target / "metrics.jsonl").exists():
            print(f"report: {build_report(target)}")
    except OSError as error:
        message = f"cannot be written ({error}); choose another --workdir"
        raise UserError(f"{target / FILE}: {message}") from error
    return target / FILE


def _whole_view(record: JsonObject) -> ComparisonView:
    view = comparison_view(record)
    assert view is not None, "a record of this program is whole"
    return view


def render_page(view: ComparisonView, same: SameProblems | None = None) -> str:
    """The page of a comparison as HTML, which loads no other file and has no script."""
    template = environment(pathlib.Path(__file__).parent).get_template("compare.html.j2")
    return template.render(comparison=view, same=same)
