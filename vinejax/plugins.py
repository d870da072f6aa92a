"""Modules and functions that a user names by dotted path: a task, a method, a rule of credit."""

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any


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


@functools.cache
def find_function(path: str) -> Callable[..., Any] | None:
    """The function of this dotted path; None where there is none. Imports raise as above."""
    name, _, function = path.rpartition(".")
    module = find_module(name) if name else None
    found = getattr(module, function, None)
    return found if callable(found) else None
