"""The setting `data.free_steps`: which tasks read it, and that no other task does."""

import dataclasses
import re
from pathlib import Path

import pytest
from helpers.paths import REPO

from vinejax.core.settings import DataConfig
from vinejax.tasks.base import WithFreeSteps, load_task

READERS = ("bifurcation", "free_order", "countdown")
MODULES = sorted(path.stem for path in (REPO / "vinejax" / "tasks").glob("*.py"))
MAKE = re.compile(r"^(def make\(|make = )", re.M)
TASKS = [x for x in MODULES if MAKE.search((REPO / f"vinejax/tasks/{x}.py").read_text())]


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")  # of extras
@pytest.mark.parametrize("name", TASKS)
def test_a_task_reads_it_or_has_no_free_steps(name: str, tmp_path: Path):
    data = DataConfig(task=f"vinejax.tasks.{name}", path=str(tmp_path), free_steps=2)
    if name in READERS:  # tasks that make their problems
        task = load_task(dataclasses.replace(data, path=""))
        assert isinstance(task, WithFreeSteps) and task.free_steps == (2,)
        return
    if name == "reasoning_gym":
        pytest.importorskip(name)
    assert not isinstance(load_task(data), WithFreeSteps)


def test_zero_is_a_number_of_free_steps_too():
    assert len(TASKS) > len(READERS)
    task = load_task(DataConfig(task="vinejax.tasks.bifurcation", free_steps=0))
    assert isinstance(task, WithFreeSteps) and task.free_steps == (0,)


def test_a_task_of_ones_own_reads_it_by_having_the_attribute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = "\n".join(
        [
            "from vinejax.tasks.arithmetic import Arithmetic",
            "def make(data):",
            "    task = Arithmetic()",
            "    task.free_steps = (data.free_steps or 0,)",
            "    return task",
        ]
    )
    (tmp_path / "own_free_steps.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    task = load_task(DataConfig(task="own_free_steps", free_steps=3))
    assert isinstance(task, WithFreeSteps) and task.free_steps == (3,)
