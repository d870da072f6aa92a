"""Finds modules and functions that a user names: a task, a method, a reward, a credit rule.

A module is named by its dotted path. One file in the current folder, or on PYTHONPATH, is named by
the file's name, with or without '.py'.

`listed` and `finite_number` read the results of such functions.
"""

import asyncio
import functools
import importlib
import importlib.util
import inspect
import math
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping, Set
from types import ModuleType
from typing import Any

from vinejax.core.errors import ConfigError, UserError

SEARCHED = "in the current folder or on PYTHONPATH"  # where modules are looked for, in messages


def find_module(name: str) -> ModuleType | None:
    """The module of this name, or None if there is no such module.

    Raises any error with which the import of an existing module fails, and ImportError if the
    module ends the program.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        return find_module(name.removesuffix(".py")) if name.endswith(".py") else None
    except SystemExit as error:  # it would end the command without a word
        message = f"it calls exit({error.code!r}); put that under `if __name__ == '__main__':`"
        raise ImportError(message).with_traceback(error.__traceback__) from None


def is_importable(name: str) -> bool:
    """Whether a name without dots is a module that can be imported and is not Python's own.

    This may be a file of the user's or an installed package. The module is not imported.
    """
    if not name.isidentifier() or name in sys.stdlib_module_names:
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # a module without a specification, as `__main__` may be
        return False


def own_functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The public functions that a module defines itself, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }


def other_functions(module: ModuleType) -> list[str]:
    """The names of a module's public callables other than classes and its own functions.

    These are functions that it imports, and objects that can be called.
    """
    own = own_functions(module)
    return [
        name
        for name, value in vars(module).items()
        if callable(value) and not inspect.isclass(value)
        if name not in own and not name.startswith("_")
    ]


@functools.cache
def find_function(path: str) -> Callable[..., Any] | None:
    """The function of this dotted path, or None. Raises what `find_module` raises."""
    name, _, function = path.rpartition(".")
    module = find_module(name) if name else None
    found = getattr(module, function, None)
    return found if callable(found) else None


def function_of(field: str, path: str) -> Callable[..., Any] | None:
    """The function of this dotted path, or None if there is no such function.

    Raises ConfigError for `field`, with file and line, if the import of its module fails.
    """
    try:
        return find_function(path)
    except Exception as error:
        reason = failure(error, source_of(path.rpartition(".")[0]))
        raise ConfigError(field, reason, repr(path)) from error


def absence_of(path: str) -> str:
    """The reason, in words, why `find_function` finds nothing at this dotted path.

    Either the module is missing, or it has no such function.
    """
    name, _, function = path.rpartition(".")
    module = find_module(name) if name else None
    if module is None:
        return f"no module {name or path!r} {SEARCHED}"
    kind = "no function" if hasattr(module, function) else "nothing called"
    return f"{source_of(name) or name} has {kind} {function!r}"


def place_of(function: Callable[..., Any]) -> str:
    """'FILE:LINE' where a function is defined; if the line is unknown, its file or its repr."""
    code = getattr(_wrapped_in(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else file_of(function)


def file_of(function: Callable[..., Any]) -> str:
    """The file where a function is defined; if it is unknown, the function's repr."""
    function = _wrapped_in(function)
    if code := getattr(function, "__code__", None):
        return code.co_filename
    module = getattr(function, "__module__", None) or type(function).__module__
    return source_of(module) or repr(function)


def _wrapped_in(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind partial functions and decorators."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(function)


def called_within(
    seconds: float | None, name: str, function: Callable[..., Any], *arguments: Any
) -> tuple[list[Any], threading.Thread]:
    """Calls a function in a thread, and returns (a list with its result, the thread).

    The list is empty if the call takes more than `seconds`; None is no limit. The call runs on a
    daemon thread called `name`, which the caller can leave behind if the call hangs. Raises what
    the call raises.
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


def awaited_in(loop: asyncio.AbstractEventLoop, awaitable: Awaitable[Any]) -> Any:
    """The result of `awaitable`, for which this function runs the event loop `loop`.

    A thread runs one event loop at a time. If another one runs in this thread already, as in a
    notebook, `loop` runs in a thread of its own.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # no loop runs
        return loop.run_until_complete(awaitable)
    results, _ = called_within(None, "event loop", loop.run_until_complete, awaitable)
    return results[0]


def result_of(field: str, path: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a user's function, which the setting `field` names by the dotted `path`.

    A UserError that the function raises is passed on. For any other error, raises a ConfigError
    that names the last line of the traceback in the function's file.
    """
    try:
        return function(*arguments)
    except UserError:
        raise
    except Exception as error:
        file = source_of(getattr(function, "__module__", ""))
        raise ConfigError(field, failure(error, file), repr(path)) from error


def listed(value: Any) -> list[Any] | None:
    """The entries of a list, tuple, array or iterator; None for anything else.

    The result is None for texts and dicts, too, and for sets, because a set has no order.
    """
    if isinstance(value, str | bytes | Mapping | Set):
        return None
    try:
        return list(value)
    except TypeError:  # it has no entries: a number, None, an array without axes
        return None


def finite_number(value: Any) -> float | None:
    """A finite number, or a finite scalar of an array library, as a float; else None.

    A text is not a number, and neither is an array with an axis, even of one entry.
    """
    if isinstance(value, str | bytes) or getattr(value, "ndim", 0):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def source_of(module: str) -> str | None:
    """The file of a module, even if its import failed; None if the file is unknown."""
    if module in sys.modules:
        return getattr(sys.modules[module], "__file__", None)
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # the import of a package above it also fails
        return None
    return spec.origin if spec else None


def failure(error: BaseException, *files: str | None) -> str:
    """The text 'FILE:LINE: KeyError: ...' of `error`; LINE is the traceback's last line in FILE.

    The text is one line. FILE is the first of `files` with a line in the traceback. If none has
    one, as for a SyntaxError, FILE is the first of them and LINE is left out. If FILE is None, FILE
    and LINE are those of the traceback's last line.
    """
    frames = traceback.extract_tb(error.__traceback__)
    by_file = ([frame for frame in frames if file in (None, frame.filename)] for file in files)
    lines = next(filter(None, by_file), [])
    place = f"{lines[-1].filename}:{lines[-1].lineno}" if lines else files[0]
    return f"{place}: {type(error).__name__}: {' '.join(str(error).split())}"


def shown(value: Any, length: int = 200) -> str:
    """The first `length` characters of a value's repr, in one line."""
    return " ".join(repr(value).split())[:length]
