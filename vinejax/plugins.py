"""Modules and functions that a user names by dotted path: a task, a method."""

import importlib
from types import ModuleType


def find_module(name: str) -> ModuleType | None:
    """The module of this dotted path; None where there is none.

    An error while an existing module is imported is passed on.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        return None
