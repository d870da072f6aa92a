"""Integers that are longer than Python converts to decimal text and back by default."""

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

MOST_DIGITS = 200_000  # limit in this process; a longer conversion takes seconds on Python 3.11
_lock = threading.Lock()
_users = 0  # number of threads that are within `long_integers`
_usual = sys.get_int_max_str_digits()


@contextlib.contextmanager
def long_integers() -> Iterator[None]:
    """Within this context, integers of up to MOST_DIGITS digits convert to text and back.

    The limit belongs to the whole process, and is restored when the last thread leaves the context.
    """
    global _users, _usual
    with _lock:
        if not _users:
            _usual = sys.get_int_max_str_digits()
            sys.set_int_max_str_digits(max(_usual, MOST_DIGITS) if _usual else 0)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                sys.set_int_max_str_digits(_usual)


@contextlib.contextmanager
def readable_tests() -> Iterator[None]:
    """`long_integers` for reading tests. Raises ValueError in our words if tests are too large."""
    try:
        with long_integers():
            yield
    except json.JSONDecodeError:
        raise
    except (MemoryError, RecursionError):
        raise ValueError("the tests are nested too deeply") from None
    except ValueError as error:
        if "integer string conversion" not in str(error):
            raise
        message = f"the tests have an integer of more than {MOST_DIGITS:,} digits"
        raise ValueError(message) from None


def shown(value: Any) -> str:
    """The `repr` of a value, or its type if it has too long an integer or is nested too deeply."""
    try:
        return repr(value)
    except (RecursionError, ValueError):
        kind = type(value).__name__
        return f"<{kind} of {value.bit_length()} bits>" if kind == "int" else f"<{kind}>"
