"""Names that accessories add to a configuration: methods, tasks and groups of settings.

Accessories are the packages `vinejax/contrib/` and `vinejax/tools/`. The core imports nothing of
theirs: it reads the tables of strings in their files names.py, and imports the module behind a name
when somebody asks for that name. Without the two packages only the core's own names exist.
"""

import functools
import importlib
import sys
from collections.abc import Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Literal

from vinejax.core.plugins import find_module

PACKAGES = ("vinejax.contrib", "vinejax.tools")
Kind = Literal["METHODS", "TASKS", "SECTIONS", "OPTIONS", "HOOKS"]


@functools.cache
def contributed(kind: Kind) -> Mapping[str, str]:
    """Maps the names of one kind to the dotted paths of modules, classes or functions.

    The names of the kind `METHODS` are values of the field `method`, and those of `TASKS` are
    values of `data.task`. `SECTIONS` maps groups of fields to their classes, and `OPTIONS` maps
    groups of fields to the modules that change an iteration's stages as the fields say. `HOOKS` has
    three names: 'page' stands for the subclass of `training.observer.Observer` that shows a run to
    people, 'mesh_row' for the function that proposes a row of `meshes` if none fits the devices,
    and 'start_check' for the function that looks at a session that is about to train.
    """
    paths: dict[str, str] = {}
    for package in PACKAGES:
        names = find_module(f"{package}.names")
        paths |= getattr(names, kind, {}) if names else {}
    return paths


def contributed_module(kind: Kind, name: str) -> ModuleType | None:
    """The module that a contributed name stands for; None if no accessory adds `name`."""
    return find_module(contributed(kind).get(name, ""))


class TaskFinder(MetaPathFinder, Loader):
    """Imports contributed tasks by the names that they have as values of `data.task`.

    `import vinejax.tasks.textarena` gives the very module that accessories have for the name.
    """

    @classmethod
    def install(cls) -> None:
        """Adds a finder to those of Python, once."""
        if not any(isinstance(finder, cls) for finder in sys.meta_path):
            sys.meta_path.append(cls())

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        # Only for names of tasks: the tables themselves are imported through the finders.
        is_task = fullname.startswith("vinejax.tasks.") and fullname in contributed("TASKS")
        return ModuleSpec(fullname, self) if is_task else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(contributed("TASKS")[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module, which has been executed, its own specification back."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def contributed_class(kind: Kind, name: str) -> Any:
    """The class or function that a contributed name stands for; None for unknown names."""
    module, _, leaf = contributed(kind).get(name, "").rpartition(".")
    module_found = find_module(module)
    return getattr(module_found, leaf) if module_found else None
