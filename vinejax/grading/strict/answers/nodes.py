"""The kinds of answers: numbers and formulas, tuples, sets, matrices, relations, words."""

import re
from dataclasses import dataclass

from vinejax.grading.strict.algebra.syntax_trees import Tree


@dataclass(frozen=True)
class Read:
    """The base of all nodes. `source` is the cleaned text that was read; '' for a computed node."""

    source: str


class Raw(Read):
    """Text that no reader understood."""


class Text(Read):
    """An answer in words, such as `blue`."""


@dataclass(frozen=True)
class Formula(Read):
    """A number or an expression; `prefix` and `unit` are the words before and after it, or ''."""

    tree: Tree
    prefix: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Based(Read):
    """A number in a stated base, such as `204_5`."""

    digits: str
    base: int


@dataclass(frozen=True)
class Ratio(Read):
    """A ratio `a:b`, or a time of day such as `8:05`."""

    parts: tuple[Formula, ...]
    unit: str = ""


@dataclass(frozen=True)
class Sequence(Read):
    """A tuple, point, vector or interval, whose items have an order, with its brackets."""

    opening: str
    items: tuple["Node", ...]
    closing: str


@dataclass(frozen=True)
class Collection(Read):
    """Several nodes; `kind` is 'set' (in braces), 'list', 'union', 'intersection' or 'difference'.

    `joiner` says whether the items of a list are joined by "and" or "or", or only by commas ("").
    """

    kind: str
    items: tuple["Node", ...]
    joiner: str = ""


@dataclass(frozen=True)
class Matrix(Read):
    """A matrix as rows of nodes; with `bars` it is written as a determinant."""

    rows: tuple[tuple["Node", ...], ...]
    bars: bool = False


@dataclass(frozen=True)
class Relation(Read):
    """A chain `side op side ..`; ops are `=`, `<`, `<=`, `!=`, `in`. `a > b` is read as `b < a`."""

    sides: tuple["Node", ...]
    ops: tuple[str, ...]


Node = Raw | Text | Formula | Based | Ratio | Sequence | Collection | Matrix | Relation


def open_lists(members: list[Node]) -> tuple[Node, ...]:
    """The members, where each member that is a list is replaced by its items."""
    flat: list[Node] = []
    for node in members:
        if isinstance(node, Collection) and node.kind == "list":
            flat.extend(node.items)
        else:
            flat.append(node)
    return tuple(flat)


def source_key(source: str) -> str:
    """A source without meaningless spaces and braces, so that `x ^{2}` becomes `x^2`."""
    bare = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", source).rstrip(".")
    return re.sub(r"([_^])\{(\w)\}(?!\d)", r"\1\2", bare)
