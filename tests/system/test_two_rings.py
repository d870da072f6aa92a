"""A checkout without contributed code and tools: the core trains, and its tests are green."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import REPO

pytestmark = pytest.mark.slow

ACCESSORIES = ("contrib", "tools")
COPIED = ("vinejax", "configs", "tests", "examples", "benchmarks", "docs")
# Rooms whose tests hold names, settings and calls together, in seconds.
TESTED = ("test_architecture.py", "config", "methods", "session")

# Python runs this at its start, after a package that was installed with `pip install -e` has put a
# finder of its modules into place, which would find the second ring in the checkout.
SITECUSTOMIZE = """
import sys

sys.meta_path[:] = [x for x in sys.meta_path if not x.__module__.startswith("__editable__")]
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout without the second ring, its configurations and its tests."""
    folder = tmp_path_factory.mktemp("checkout") / "vinejax"
    without = shutil.ignore_patterns(*ACCESSORIES, "__pycache__")
    for name in COPIED:
        shutil.copytree(REPO / name, folder / name, ignore=without)
    for file in ("pyproject.toml", "README.md", "CONTRIBUTING.md", "requirements.txt", "setup.py"):
        shutil.copy(REPO / file, folder)
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    assert not [path for path in folder.rglob("*") if path.name in ACCESSORIES]
    return folder


def done(core: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m ...` after its end, in the copy, whose package it imports."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=core,
        env=os.environ | {"PYTHONPATH": str(core)},
        capture_output=True,
        text=True,
    )


def run(core: Path, *arguments: str) -> str:
    """The standard output of `python -m ...` in the copy; fails if the command does."""
    result = done(core, *arguments)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return result.stdout


def test_the_core_trains(core: Path):
    small = {"iterations": 2, "rollout.prompts": 8, "eval.problems": 16, "rollout.slots": 64}
    fields = [f"--config.{name}={value}" for name, value in small.items()]
    run(core, "vinejax.main", "--config=configs/tiny.py", "--workdir=run", *fields)
    assert (core / "run" / "metrics.jsonl").exists() and (core / "run" / "episodes").is_dir()
    assert not (core / "run" / "report.html").exists()  # the tools' page


def test_a_mode_of_the_tools_is_refused_in_one_line(core: Path):
    result = done(core, "vinejax.main", "--config=configs/tiny.py", "--mode=plan")
    assert result.returncode == 2 and "--mode=plan needs vinejax/tools" in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_cores_tests_are_collected_and_green(core: Path):
    assert " tests collected" in run(core, "pytest", "-q", "--collect-only", "--full", "-n0")
    tests = [f"tests/{name}" for name in TESTED]
    assert " passed" in run(core, "pytest", "-q", "-n0", *tests)
