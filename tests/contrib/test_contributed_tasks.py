"""Contributed tasks by their names: each is found, and none has free steps."""

import importlib

import pytest

from vinejax.contrib.names import TASKS
from vinejax.core.settings import DataConfig
from vinejax.tasks.base import WithFreeSteps, load_task

PATHS = {  # of extras, a path of each
    "vinejax.tasks.textarena": "FrozenLake-v0",
    "vinejax.tasks.gymnasium": "FrozenLake-v1",
    "vinejax.tasks.gem": "game:GuessTheNumber-v0-easy",
}
ELSEWHERE = {"vinejax.tasks.openenv", "vinejax.tasks.verifiers"}  # need a server, a taskset


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")  # of extras
@pytest.mark.parametrize("name", sorted(set(TASKS) - ELSEWHERE))
def test_a_task_is_found_by_its_name_and_has_no_free_steps(name: str, tmp_path):
    if name in PATHS:
        pytest.importorskip(name.rpartition(".")[2])
    path = PATHS.get(name, str(tmp_path))
    task = load_task(DataConfig(task=name, path=path, free_steps=2))
    assert not isinstance(task, WithFreeSteps)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_task_is_imported_by_its_name(name: str):
    """It is one module under both names, and keeps its own specification."""
    module = importlib.import_module(name)
    assert module is importlib.import_module(TASKS[name])
    assert module.__name__ == TASKS[name]
    assert module.__spec__ is not None and module.__spec__.name == TASKS[name]
    assert getattr(importlib.import_module("vinejax.tasks"), name.rpartition(".")[2]) is module


def test_other_names_are_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'vinejax\.tasks\.chess'"):
        importlib.import_module("vinejax.tasks.chess")
    with pytest.raises(ImportError):
        from vinejax.tasks import chess  # noqa: F401 # pyright: ignore
