"""Where a run's weights and problems come from, as names of the hub."""

import importlib
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from etils import epath

from vinejax.core.accessories import contributed
from vinejax.model.hf.hub import HUB_NAME
from vinejax.model.hf.peft import base_of
from vinejax.runtime.workdir import resolved_folder
from vinejax.tools.hub.public_settings import last_part

DATA_SET = re.compile(r"[\w.-]+/[\w.-]+")  # ORG/NAME
OWN_TASKS = "vinejax.tasks."


class Origin(NamedTuple):
    """The origin of weights or of problems."""

    name: str  # a name of the hub, or the last part of a local path; '' if there is none
    is_on_hub: bool


def base_model(path: str, is_model: Callable[[str], bool]) -> Origin:
    """The model that training began with, by `model.path`, through the runs in between.

    A run that started from another run's policy has the base model of that run, and one that
    started from PEFT's adapters has their base model. `is_model` says whether the hub has a model
    of a name; it is only asked for a name that is no local path. A folder in which an earlier run
    started, and which is gone, may look like such a name.
    """
    while path:
        folder = resolved_folder(path)
        if not folder.is_dir():
            is_name = not folder.exists() and HUB_NAME.fullmatch(path) is not None
            return Origin(last_part(path), is_name and is_model(path))
        record = _record_of(folder)
        if record is None:
            if (base := base_of(folder)) is None:
                return Origin(last_part(os.fspath(folder)), False)
            path = base
        else:
            path = str(record["config"]["model"]["path"])
    return Origin("", False)


def data_set(settings: Mapping[str, Any], is_data_set: Callable[[str], bool]) -> Origin:
    """The data set of the problems, by settings with dotted names.

    `is_data_set` says whether the hub has a data set of a name; it is only asked for a name that is
    no local path.
    """
    task = str(settings["data.task"])
    path = str(settings["data.path"])
    if not path and is_of_core(task):  # such a task may have a usual data set
        path = vars(importlib.import_module(task)).get("HUB_NAME", "")
    if DATA_SET.fullmatch(path) and not resolved_folder(path).exists() and is_data_set(path):
        return Origin(path, True)
    return Origin(last_part(path), False)


def is_of_core(task: str) -> bool:
    """Whether `data.task` is a task of the core, neither a contributed one nor a user's."""
    return task.startswith(OWN_TASKS) and task not in contributed("TASKS")


def _record_of(folder: epath.Path) -> dict[str, Any] | None:
    """The config.json of the run in a folder; None if the folder is no workdir of a run."""
    file = folder / "config.json"
    record = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return record if "git_revision" in record else None
