"""The notebook runs from its first cell to its last, in a kernel of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import REPO

NOTEBOOK = REPO / "examples" / "first_run.ipynb"
EXECUTE = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
nbformat.validate(notebook)
NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


def test_it_is_stored_without_outputs_and_installs_in_its_first_cell():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert "pip" in "".join(code[0]["source"]) and cells[0]["cell_type"] == "markdown"
    for cell in code:
        compile("".join(cell["source"]), "cell", "exec")


@pytest.mark.nightly
def test_it_runs(tmp_path: Path):
    """In a folder of its own, with the package as Python finds it; in CI in less than 5 minutes."""
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    done = tmp_path / "done.ipynb"
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(REPO), *_path()])}
    subprocess.run(
        [sys.executable, "-c", EXECUTE, str(NOTEBOOK), str(done)],
        cwd=tmp_path,
        env=environ,
        check=True,
    )
    outputs = [
        cell["outputs"] for cell in json.loads(done.read_text())["cells"] if "outputs" in cell
    ]
    shown = [output["data"]["text/html"] for cell in outputs for output in cell if "data" in output]
    first, mine = ("".join(html) for html in shown)
    assert "6 iterations" in first and "<polyline" in first and "validation" in first
    assert "1 iterations" in mine
    text = "".join(
        "".join(output["text"]) for cell in outputs for output in cell if "text" in output
    )
    assert "iteration 5: share of right solutions" in text and "advantage +" in text
    runs = tmp_path / "runs" / "first_run"
    assert {path.name for path in runs.iterdir()} == {"sums", "shorter", "mine", "sums.jsonl"}
    lines = (runs / "shorter" / "metrics.jsonl").read_text().splitlines()
    trained = [record for record in map(json.loads, lines) if record["stage"] == "train"]
    assert len(trained) == 2 and all({"reward/task", "reward/short"} < r.keys() for r in trained)


def _path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
