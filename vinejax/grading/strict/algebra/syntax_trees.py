"""Expression trees. The parser builds them; the evaluator and the comparison read them.

Trees are frozen, hashable and compared by value. A number keeps its written form, because a long
decimal may be the printed form of another number (`numbers.rounds_to`). `a - b` is a sum with a
`Negative` in it, and no sum or product is empty.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal


@dataclass(frozen=True, slots=True)
class Number:
    """A rational number, and how it was written."""

    value: Fraction
    shown: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, a word in quotes (`'cm'`) or one of CONSTANTS."""

    name: str


@dataclass(frozen=True, slots=True)
class Sum:
    terms: "tuple[Tree, ...]"


@dataclass(frozen=True, slots=True)
class Product:
    factors: "tuple[Tree, ...]"


@dataclass(frozen=True, slots=True)
class Quotient:
    top: "Tree"
    bottom: "Tree"


@dataclass(frozen=True, slots=True)
class Power:
    base: "Tree"
    exponent: "Tree"


@dataclass(frozen=True, slots=True)
class Negative:
    inner: "Tree"


@dataclass(frozen=True, slots=True)
class Marked:
    """`inner` with a degree mark ('deg') or a per cent sign ('pct') behind it."""

    mark: Literal["deg", "pct"]
    inner: "Tree"


@dataclass(frozen=True, slots=True)
class Call:
    """A function of one or more arguments; `log` can have its base as a second argument."""

    name: str
    arguments: "tuple[Tree, ...]"


Tree = Number | Symbol | Sum | Product | Quotient | Power | Negative | Marked | Call

CONSTANTS = {"pi", "e", "i", "inf"}
IMAGINARY_UNIT = Symbol("i")
INFINITY = Symbol("inf")
REALS = Symbol("mathbb:R")  # the set of real numbers


def number(value: int | Fraction) -> Number:
    """The node of a computed number, whose written form is `str(value)`."""
    return Number(Fraction(value), str(value))


def nodes_of(tree: Tree) -> Iterator[Tree]:
    """Yields the tree and all its subtrees."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        match node:
            case Sum(children) | Product(children) | Call(_, children):
                stack.extend(children)
            case Quotient(left, right) | Power(left, right):
                stack.extend((left, right))
            case Negative(inner) | Marked(_, inner):
                stack.append(inner)


def variables(tree: Tree) -> set[str]:
    """The names of the symbols that are not constants."""
    names = {node.name for node in nodes_of(tree) if isinstance(node, Symbol)}
    return names - CONSTANTS
