"""Modules and functions that a user names by dotted path: a task, a method, a rule of credit."""

import functools
import importlib
import importlib.util
import traceback
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


def failure(error: BaseException, module: str) -> str:
    """'FILE:LINE: KeyError: ...': the last line of this module that an error passed through.

    The last line of all if it passed through none.
    """
    spec = importlib.util.find_spec(module)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if spec is not None and frame.filename == spec.origin]
    place = "".join(f"{frame.filename}:{frame.lineno}: " for frame in (own or frames)[-1:])
    return f"{place}{type(error).__name__}: {error}"
