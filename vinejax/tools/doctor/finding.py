"""A cause that the doctor names, and how texts of a run appear in its line."""

from collections.abc import Sequence
from typing import NamedTuple

EXCERPT = 60  # characters of a text in a line


class Finding(NamedTuple):
    """A cause in one line, which says what is wrong, where, and what to do."""

    line: str
    stops: bool = False  # whether training cannot work, so that a run does not begin


def excerpt(text: str) -> str:
    """The beginning of a text, quoted on one line."""
    return repr(text if len(text) <= EXCERPT else text[:EXCERPT] + "...")


def end_of(text: str, size: int = EXCERPT) -> str:
    """The end of a text, quoted on one line."""
    return repr(text if len(text) <= size else "..." + text[-size:])


def number(value: float) -> str:
    """A reward with at most three digits."""
    return f"{value:.3g}"


def of_all(count: int, noun: str) -> str:
    """'all 16 responses', or 'the one response'."""
    return f"all {count} {noun}" if count > 1 else f"the one {noun.removesuffix('s')}"


def span(values: Sequence[float]) -> str:
    """'1', or '0 to 1'."""
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"
