"""Lists with dots: `1, 2, \\ldots, 10` stands for all terms if they form a progression."""

import dataclasses
import re
from fractions import Fraction

from vinejax.grading.strict.algebra import evaluate, symbolic
from vinejax.grading.strict.algebra.syntax_trees import number
from vinejax.grading.strict.answers.nodes import Collection, Formula, Node, Relation, Sequence

MAX_TERMS = 1000  # terms that are written out; of longer progressions only the start is compared
MAX_PARTS = 4  # sets of a union, or sides of a relation

_OF_SETS = ("union", "intersection", "difference")
_DOTS = re.compile(r"\s*\\ldots\s*")


def write_out_dots(node: Node) -> Node:
    """Replaces the dots of a list, set or tuple by the terms that they stand for.

    Also replaces dots in the sides of a relation and in the sets of a union, intersection or
    difference. Two terms before the dots define an arithmetic progression, three terms an
    arithmetic or geometric one. After a single whole number the dots count up by 1, to a larger
    number. A progression without a numeric end keeps its first terms and the dots.
    """
    if isinstance(node, Relation) and len(node.sides) <= MAX_PARTS:
        return dataclasses.replace(node, sides=tuple(map(write_out_dots, node.sides)))
    if not isinstance(node, Collection | Sequence):
        return node
    items = node.items
    if isinstance(node, Collection) and node.kind in _OF_SETS:
        items = tuple(map(write_out_dots, items)) if len(items) <= MAX_PARTS else items
        return dataclasses.replace(node, items=items)
    dots = [i for i, item in enumerate(items) if _DOTS.fullmatch(item.source)]
    if len(dots) == 1 and 0 < dots[0] < MAX_TERMS:
        items = _filled(items[: dots[0]], items[dots[0]], items[dots[0] + 1 :])
    return dataclasses.replace(node, items=items)


def _filled(before: tuple[Node, ...], dots: Node, after: tuple[Node, ...]) -> tuple[Node, ...]:
    start, end = _values(before), _values(after)
    step = _step(start, end)
    if step is None:
        return (*before, dots, *after)
    if end:
        terms = [*start]
        while len(terms) < MAX_TERMS and terms[-1] != end[0]:
            if evaluate.bits_of(terms[-1]) > symbolic.MAX_WRITTEN:
                break
            terms.append(_next(terms[-1], step))
        if terms[-1] == end[0] and _goes_on(end, step):
            between = terms[len(start) : -1]
            return (*before, *(Formula(str(x), number(x)) for x in between), *after)
    return (*before[: 2 if step[1] == 1 else 3], dots, *after)


def _values(nodes: tuple[Node, ...]) -> list[Fraction]:
    """The values of the nodes if all are rational numbers, else []."""
    bare = all(isinstance(n, Formula) and not n.prefix + n.unit for n in nodes)
    trees = [symbolic.as_rational(n.tree) for n in nodes if isinstance(n, Formula)] if bare else []
    return [] if None in trees else [tree.value for tree in trees if tree]


Step = tuple[Fraction, Fraction]  # difference and ratio: after x comes x * ratio + difference


def _next(x: Fraction, step: Step) -> Fraction:
    return x * step[1] + step[0]


def _goes_on(terms: list[Fraction], step: Step) -> bool:
    return all(_next(x, step) == y for x, y in zip(terms, terms[1:], strict=False))


def _step(start: list[Fraction], end: list[Fraction]) -> Step | None:
    """The step from each term of a progression to the next; None if no step fits all terms.

    `start` has the terms before the dots, `end` the terms after the dots.
    """
    if len(start) == 1 and end and start[0] < end[0] and start[0].denominator == 1:
        return Fraction(1), Fraction(1)
    if len(start) < 2 or start[0] == start[1]:
        return None
    steps = [(start[1] - start[0], Fraction(1))]
    if len(start) > 2 and start[0]:
        steps.append((Fraction(0), start[1] / start[0]))
    return next((step for step in steps if _goes_on(start, step)), None)
