"""Turns inequalities, unions and differences of real sets into intervals from left to right."""

import itertools
import math
import re
from typing import Any, NamedTuple

from vinejax.grading.strict.algebra import symbolic
from vinejax.grading.strict.algebra import syntax_trees as trees
from vinejax.grading.strict.algebra.syntax_trees import variables
from vinejax.grading.strict.answers import nodes, relations
from vinejax.grading.strict.answers.nodes import Node, Sequence, source_key

MAX_INTERVALS = 60
_OF_LETTER = re.compile(r"[fghpFGHP]\([a-z]\)")  # f(x)
_BRACKETS = {"<": "()", "<=": "[]"}
_ONE_BOUND = (("<",), ("<=",))  # `|x| < 3` restricts x, `1 < |x| < 3` restricts |x|


class _Span(NamedTuple):
    """An interval with ends that are Fractions or infinite; ends can be compared by `<`."""

    low: tuple[Any, bool]  # the number, and whether the end is open
    high: tuple[Any, bool]  # the number, and whether the end is closed
    interval: Sequence


def as_intervals(node: Node) -> list[Sequence] | None:
    """The intervals of `x < 2`, `-2 <= x <= 7`, `x != 3`, `|x| > 1`, or of sets of these.

    Intervals with numeric ends are sorted and merged. None for other nodes, and for intersections
    and differences of sets without numeric ends. Inequalities that are separated by commas hold
    at the same time, or are alternatives if no number satisfies all (`x < 1, x > 2`). A list of
    intervals is read as their union, but the result is None if two of them touch or overlap.
    """
    intervals = _intervals(node)
    if intervals is None or len(intervals) > MAX_INTERVALS:
        return None
    spans = _spans(intervals)
    return intervals if spans is None else [span.interval for span in _merge(spans)]


def subject_of(node: Node) -> str:
    """The subject of inequalities, such as `x`, `\\sin x` or `f(2)`; '' if none, '?' if several."""
    names: set[str] = set()
    if isinstance(node, nodes.Relation):
        sides = node.sides[:1] if node.ops == ("in",) else node.sides
        names = {name for side in sides for name in _subjects(side, node.ops)}
    if isinstance(node, nodes.Collection):
        names = {subject_of(item) for item in node.items} - {""}
    return "?" if len(names) > 1 else min(names, default="")


def _subjects(side: Node, ops: tuple[str, ...]) -> set[str]:
    """The variables in one side of a relation with the operators `ops`.

    If the side only names a quantity, such as `f(2)` or `|x|`, the set has the text of the side
    instead. But in a single inequality such as `|x| < 3`, the side `|x|` has the variable x.
    """
    if not isinstance(side, nodes.Formula):
        return {side.source}
    names = variables(side.tree)
    if _OF_LETTER.fullmatch(source_key(side.source)):
        return {source_key(side.source)}
    if len(names) != 1 or not relations.name_of(side):
        return names
    match side.tree:
        case trees.Symbol() if not side.unit:
            return names
        case trees.Call("abs") if ops in _ONE_BOUND:
            return names
    return {source_key(side.source)}


def _intervals(node: Node) -> list[Sequence] | None:
    if isinstance(node, Sequence):
        return [node] if len(node.items) == 2 else None
    if isinstance(node, nodes.Collection):
        return _of_collection(node)
    if is_reals(node):
        return [_ALL]
    return _of_relation(node) if isinstance(node, nodes.Relation) else None


def is_reals(node: Node) -> bool:
    """Whether a node is the set of real numbers."""
    return isinstance(node, nodes.Formula) and node.tree == trees.REALS


def _of_collection(node: nodes.Collection) -> list[Sequence] | None:
    if len(node.items) > MAX_INTERVALS or subject_of(node) == "?":
        return None
    if node.kind == "set":
        return _points(node.items)
    items = _excluding(node.items)
    parts: list[list[Sequence]] = []
    for item in items:
        part = _intervals(item)
        if part is None or sum(map(len, parts)) + len(part) > MAX_INTERVALS:
            return None
        parts.append(part)
    if node.kind == "difference":
        return _difference(*parts)
    if node.kind == "intersection":
        return _common(parts)
    union = list(itertools.chain(*parts))
    if node.kind == "union" or (node.joiner == "or" and items == node.items):
        return union
    if all(isinstance(item, nodes.Relation) for item in items):
        at_once = node.joiner == "and" or items != node.items
        return _common(parts) or (None if at_once else union)
    spans = _spans(union)  # none may overlap or touch another
    return union if spans is None or len(_merge(spans)) == len(spans) else None


def _points(items: tuple[Node, ...]) -> list[Sequence] | None:
    """The items as intervals of one point each; None unless all are formulas without words."""
    bare = all(isinstance(item, nodes.Formula) and not item.prefix + item.unit for item in items)
    return [_interval("[", point, point, "]") for point in items] if bare else None


def _excluding(items: tuple[Node, ...]) -> tuple[Node, ...]:
    """Expand `x != 1, 2` to `x != 1, x != 2`; other items stay as they are."""
    first = items[0] if items else None
    if not isinstance(first, nodes.Relation) or first.ops != ("!=",):
        return items
    name = first.sides[0]
    if not relations.name_of(name):
        return items
    also = [
        x if isinstance(x, nodes.Relation) else nodes.Relation("", (name, x), ("!=",))
        for x in items[1:]
    ]
    return (first, *also)


def _of_relation(node: nodes.Relation) -> list[Sequence] | None:
    match node.ops, node.sides:
        case ("in",), (_, values):
            return _intervals(values)
        case ("!=",), (name, value) if relations.name_of(name):
            return _less_point(_ALL, value)
        case ("=",), (name, value) if relations.name_of(name):
            return _points((value,))
        case ("<" | "<=" as lower, "<" | "<=" as upper), (low, name, high):
            ends = _interval(_BRACKETS[lower][0], low, high, _BRACKETS[upper][1])
            return [ends] if relations.name_of(name) else None
        case ("<" | "<=" as operator,), sides:
            return _inequality(sides, *_BRACKETS[operator])
    return None


def _inequality(sides: tuple[Node, ...], opening: str, closing: str) -> list[Sequence] | None:
    """The intervals of all x with sides[0] < sides[1], or with <= if the brackets are "[" and "]".

    None if neither side is a name such as x or a distance |x - c|.
    """
    for side, other, inside in ((sides[0], sides[1], True), (sides[1], sides[0], False)):
        if distance := _distance(side, other):
            low, high = distance
            if inside:
                return [_interval(opening, low, high, closing)]
            below = _interval("(", _MINUS_INFINITE, low, closing)
            return [below, _interval(opening, high, _INFINITE, ")")]
    if relations.name_of(sides[0]):
        return [_interval("(", _MINUS_INFINITE, sides[1], closing)]
    if relations.name_of(sides[1]):
        return [_interval(opening, sides[0], _INFINITE, ")")]
    return None


def _distance(side: Node, other: Node) -> tuple[Node, Node] | None:
    """The nodes c - r and c + r if `side` is `|x - c|` and `other` a constant r; else None."""
    match side, other:
        case nodes.Formula(tree=trees.Call("abs", (inner,))), nodes.Formula(tree=radius):
            names = variables(inner)
        case _:
            return None
    if len(names) != 1 or variables(radius):
        return None
    shift = trees.Sum((trees.Symbol(*names), trees.Negative(inner)))
    centre = symbolic.as_rational(shift)
    if centre is None:
        return None
    low, high = trees.Sum((centre, trees.Negative(radius))), trees.Sum((centre, radius))
    return nodes.Formula("", low), nodes.Formula("", high)


def _interval(opening: str, low: Node, high: Node, closing: str) -> Sequence:
    return Sequence("", opening, (low, high), closing)


_INFINITE = nodes.Formula("", trees.INFINITY)
_MINUS_INFINITE = nodes.Formula("", trees.Negative(trees.INFINITY))
_ALL = _interval("(", _MINUS_INFINITE, _INFINITE, ")")


def _less_point(base: Sequence, point: Node) -> list[Sequence]:
    """The two intervals that remain of `base` when the inner point `point` is removed."""
    below = _interval(base.opening, base.items[0], point, ")")
    return [below, _interval("(", point, base.items[1], base.closing)]


def _spans(intervals: list[Sequence]) -> list[_Span] | None:
    spans = []
    for interval in intervals:
        low, high = (
            symbolic.real_value(end.tree) if isinstance(end, nodes.Formula) else None
            for end in interval.items
        )
        if low is None or high is None or low > high:
            return None
        opening, closing = interval.opening == "(", interval.closing != ")"
        spans.append(_Span((low, opening), (high, closing), interval))
    return spans


def _merge(spans: list[_Span]) -> list[_Span]:
    """The union of spans as disjoint spans from left to right."""
    merged: list[_Span] = []
    for span in sorted(spans, key=lambda s: s.low):
        last = merged[-1] if merged else None
        # Two ends at the same number touch unless both are open.
        if not last or (span.low[0], span.low[1] and not last.high[1]) > (last.high[0], False):
            merged.append(span)
        elif span.high > last.high:
            low, high = last.interval, span.interval
            joined = _interval(low.opening, low.items[0], high.items[1], high.closing)
            merged[-1] = _Span(last.low, span.high, joined)
    return merged


def _common(parts: list[list[Sequence]]) -> list[Sequence] | None:
    """The intersection of several sets, or the set itself if there is only one.

    None if there are several, and an end of an interval in one of them is no number.
    """
    if len(parts) == 1:
        return parts[0]
    shared = [_Span((-math.inf, True), (math.inf, False), _ALL)]
    for part in parts:
        spans = _spans(part)
        if spans is None:
            return None
        shared = _merge([both for a in shared for b in spans if (both := _overlap(a, b))])
    return [span.interval for span in shared]


def _difference(base: list[Sequence], removed: list[Sequence]) -> list[Sequence] | None:
    """`base` without `removed`.

    None if an end is no number, unless `base` is one interval and `removed` a single point.
    """
    gaps = _spans(removed)
    if gaps is None or _spans(base) is None:
        if len(base) != 1 or len(removed) != 1 or removed[0].items[0] is not removed[0].items[1]:
            return None
        return _less_point(base[0], removed[0].items[0])
    around, low, opening = [], _MINUS_INFINITE, "("
    for gap in _merge(gaps):
        closing = ")" if gap.interval.opening == "[" else "]"
        around.append(_interval(opening, low, gap.interval.items[0], closing))
        low, opening = gap.interval.items[1], "(" if gap.interval.closing == "]" else "["
    return _common([base, [*around, _interval(opening, low, _INFINITE, ")")]])


def _overlap(a: _Span, b: _Span) -> _Span | None:
    """The intersection of two spans; None if it is empty."""
    low, high = max(a, b, key=lambda s: s.low), min(a, b, key=lambda s: s.high)
    if low.low[0] > high.high[0] or low.low[0] == high.high[0] and (low.low[1] or not high.high[1]):
        return None
    ends = low.interval.items[0], high.interval.items[1]
    return _Span(low.low, high.high, _interval(low.interval.opening, *ends, high.interval.closing))
