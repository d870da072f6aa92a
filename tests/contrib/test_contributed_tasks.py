"""Contributed tasks by their names: each is found, and none has free steps."""

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
