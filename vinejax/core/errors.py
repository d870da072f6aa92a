"""Errors for users, each one line that says what is wrong, where, and what to do.

The command line prints that line without a traceback and exits with status 2 (`command.py`). Every
other exception is a bug and keeps its traceback.
"""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """The base class of the errors for users; its `str()` is the line."""


class ConfigError(UserError):
    """A field of the configuration is unknown, has the wrong type or is out of range."""

    def __init__(self, field: str, message: str, value: str = ""):
        """`field` is a dotted name (`ppo.clip`); `value` is its value as a user would type it."""
        super().__init__(f"{field} = {value}: {message}" if value else f"{field}: {message}")
        self.field = field


class DataError(UserError):
    """A data file is missing or one of its lines cannot be used."""

    def __init__(self, file: str, line: int | None, message: str):
        """`line` counts from 1; None if the error concerns the whole file."""
        super().__init__(f"{file}: {message}" if line is None else f"{file}:{line}: {message}")


class WorkdirError(UserError):
    """The work directory cannot be used, or holds another run, or a file in it is damaged."""


class ModelError(UserError):
    """A model folder is missing, incomplete or of a kind that is not supported."""


class RoomError(UserError, ValueError):
    """The memory that the engine is allowed to use is too small."""


class DivergedError(UserError, FloatingPointError):
    """Logits are not finite, or all updates of several iterations in a row were skipped."""


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """The hint '; the nearest is X', where X is most like `name`; '' if no name is similar."""
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; the nearest is {nearest[0]!r}" if nearest else ""
