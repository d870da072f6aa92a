"""`--mode=compare`: reads runs, compares them, writes `compare.html`."""

import os
import pathlib
from collections.abc import Sequence

from etils import epath

from vinejax.analysis.compare import charts, groups, read, tables
from vinejax.analysis.report.build import environment
from vinejax.errors import UserError
from vinejax.runtime.workdir import write_atomic

FILE = "compare.html"
MODULE = "python -m vinejax.main"


def compare_runs(paths: Sequence[str], folder: str | os.PathLike) -> epath.Path:
    """Writes `compare.html` about the runs of the workdirs `paths` into `folder`; returns its path.

    Raises UserError for what `read_runs` refuses, and if the folder cannot be written.
    """
    page = render_page(read.read_runs(paths))
    file = epath.Path(folder) / FILE
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, page)
    except OSError as error:
        raise UserError(f"{file}: cannot be written ({error}); choose another --workdir") from error
    print(f"compared: {file}")
    return file


def render_page(runs: Sequence[read.ComparedRun]) -> str:
    """The page as HTML, which loads nothing and runs no script."""
    grouped = groups.group_runs(runs)
    template = environment(pathlib.Path(__file__).parent).get_template("compare.html.j2")
    return template.render(
        task=runs[0].settings["data.task"],
        num_runs=len(runs),
        groups=tables.group_rows(grouped),
        charts=charts.axis_charts(grouped),
        settings=groups.differing_settings(grouped),
        pairs=tables.pairs(grouped),
        unevaluated=[run.name for run in runs if run.rewards is None],
        evaluate=f"{MODULE} --mode=eval --config=FILE --workdir=RUN",
    )
