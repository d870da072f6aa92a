"""The kinds of answers: numbers and formulas, tuples, sets, matrices, relations, words.

Every node has its `source`, the cleaned text that it was read from ('' where it was derived).
"""

import re
from dataclasses import dataclass

from vinejax.grading.strict.algebra.trees import Tree


@dataclass(frozen=True)
class Raw:
    """Text that was not understood."""

    source: str


@dataclass(frozen=True)
class Text:
    """Words."""

    source: str


@dataclass(frozen=True)
class Formula:
    """A number or an expression, with the words before and after it ('' without)."""

    source: str
    tree: Tree
    prefix: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Based:
    """A number with the base it is written in."""

    source: str
    digits: str
    base: int


@dataclass(frozen=True)
class Ratio:
    """`a:b`, also a time of day."""

    source: str
    parts: tuple["Node", ...]
    unit: str = ""


@dataclass(frozen=True)
class Sequence:
    """A tuple, point, vector or interval: ordered, with its brackets."""

    source: str
    opening: str
    items: tuple["Node", ...]
    closing: str


@dataclass(frozen=True)
class Collection:
    """Several nodes; kind is set (in braces), list, union, intersection or difference.

    `joiner` says whether the items of a list are joined by "and" or "or", or by commas alone ("").
    """

    source: str
    kind: str
    items: tuple["Node", ...]
    joiner: str = ""


@dataclass(frozen=True)
class Matrix:
    """Rows of nodes; `bars` for a determinant."""

    source: str
    rows: tuple[tuple["Node", ...], ...]
    bars: bool = False


@dataclass(frozen=True)
class Relation:
    """A chain `side op side op ..`; ops are `=`, `<`, `<=`, `!=`, `in`: `a > b` is `b < a`."""

    source: str
    sides: tuple["Node", ...]
    ops: tuple[str, ...]


Node = Raw | Text | Formula | Based | Ratio | Sequence | Collection | Matrix | Relation


def source_key(source: str) -> str:
    """A source without spaces and braces that mean nothing: `x ^{2}` becomes `x^2`."""
    bare = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", source).rstrip(".")
    return re.sub(r"([_^])\{(\w)\}(?!\d)", r"\1\2", bare)
