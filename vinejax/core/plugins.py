"""Modules and functions that a user names by dotted path: a task, a method, a rule of credit.

`listed` and `finite_number` read what such functions give.
"""

import functools
import importlib
import importlib.util
import inspect
import math
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Set
from types import ModuleType
from typing import Any

from vinejax.core.errors import ConfigError, UserError


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


def function_of(field: str, path: str) -> Callable[..., Any] | None:
    """As `find_function`; ConfigError for `field`, with file and line, where the module fails."""
    try:
        return find_function(path)
    except Exception as error:
        reason = failure(error, source_of(path.rpartition(".")[0]))
        raise ConfigError(field, reason, repr(path)) from error


def absence_of(path: str) -> str:
    """Why `find_function` finds nothing at this dotted path, in words; its module can be imported.

    'no such module', with the folders in which modules of a user's own are looked for.
    """
    name, _, function = path.rpartition(".")
    module = find_module(name) if name else None
    if module is None:
        return f"no module {name or path!r} in the current folder or on PYTHONPATH"
    kind = "no function" if hasattr(module, function) else "nothing called"
    return f"{source_of(name) or name} has {kind} {function!r}"


def place_of(function: Callable[..., Any]) -> str:
    """'FILE:LINE' where a function of a user's is defined; the file, or its name, if unknown."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    module = getattr(function, "__module__", None) or type(function).__module__
    return source_of(module) or repr(function)


def called_within(
    seconds: float, name: str, function: Callable[..., Any], *arguments: Any
) -> tuple[list[Any], threading.Thread]:
    """([the result] or, once so many seconds have passed, [], the thread `name` of the call).

    The call is on a thread of its own, which can be left where it hangs. Raises what it raises.
    """
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function(*arguments))
        except BaseException as error:  # raised below, in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    return results, thread


def result_of(field: str, path: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of a user's gives, which `path`, the value of `field`, names or holds.

    Raises ConfigError, with the last line of its file, for any error but one for users.
    """
    try:
        return function(*arguments)
    except UserError:
        raise
    except Exception as error:
        file = source_of(getattr(function, "__module__", ""))
        raise ConfigError(field, failure(error, file), repr(path)) from error


def listed(found: Any) -> list[Any] | None:
    """The entries of a list, tuple, array or iterator; None for anything else, a text or dict too.

    A set is refused, as its entries have no order.
    """
    if isinstance(found, str | bytes | Mapping | Set):
        return None
    try:
        return list(found)
    except TypeError:  # it has no entries: a number, None, an array without axes
        return None


def finite_number(found: Any) -> float | None:
    """A number, or a scalar of an array library, as a float; None if it is neither, or not finite.

    A text is no number, nor is an array with an axis, even of one entry.
    """
    if isinstance(found, str | bytes) or getattr(found, "ndim", 0):
        return None
    try:
        number = float(found)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def source_of(module: str) -> str | None:
    """The file of a module, also of one whose import failed; None if it is not known."""
    if module in sys.modules:
        return getattr(sys.modules[module], "__file__", None)
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # a package above it fails, too
        return None
    return spec.origin if spec else None


def failure(error: BaseException, file: str | None) -> str:
    """'FILE:LINE: KeyError: ...': the last line of this file that an error passed through.

    The file alone if it passed through none, as an error of syntax; the last line of all if the
    file is not known.
    """
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame for frame in frames if file in (None, frame.filename)]
    place = f"{lines[-1].filename}:{lines[-1].lineno}" if lines else file
    return f"{place}: {type(error).__name__}: {error}"
