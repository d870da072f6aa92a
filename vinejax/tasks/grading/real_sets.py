"""Sets of real numbers: inequalities, unions and differences as intervals from left to right."""

from dataclasses import dataclass
from typing import Any

from vinejax.tasks.grading import relations, symbolic
from vinejax.tasks.grading.expression import Tree
from vinejax.tasks.grading.nodes import Collection, Formula, Node, Relation, Sequence

MAX_INTERVALS = 60


@dataclass(frozen=True)
class _Span:
    """An interval whose ends have values: `low` and `high` are floats of mpmath or infinite."""

    low: Any
    high: Any
    interval: Sequence

    @property
    def open_low(self) -> bool:
        return self.interval.opening == "("

    @property
    def open_high(self) -> bool:
        return self.interval.closing == ")"


def as_intervals(node: Node) -> list[Sequence] | None:
    """The intervals that `x < 2`, `-2 <= x <= 7`, `x != 3`, `|x| > 1` or a list of such stands for.

    In order and merged where the ends are numbers. Inequalities that together leave out nothing
    are meant to hold at once: `x > 1, x < 2`.
    """
    found = _intervals(node)
    if found is None or len(found) > MAX_INTERVALS:
        return None
    spans = _spans(found)
    if spans is None:
        return found
    merged = _merge(spans)
    if isinstance(node, Collection) and node.items:
        at_once = node.kind == "list" and _is_all(merged)
        if at_once or node.kind == "intersection":
            return [span.interval for span in _common(node.items)]
    return [span.interval for span in merged]


def subject(node: Node) -> str:
    """The variable that inequalities are about, '' without one, '?' where there are several."""
    names: set[str] = set()
    if isinstance(node, Relation):
        sides = node.sides[:1] if node.ops == ("in",) else node.sides
        for side in sides:
            names |= symbolic.variables(side.tree) if isinstance(side, Formula) else {side.source}
    if isinstance(node, Collection):
        names = {subject(item) for item in node.items} - {""}
    return min(names) if len(names) == 1 else "?" if names else ""


def _intervals(node: Node) -> list[Sequence] | None:
    if isinstance(node, Sequence):
        return [node] if len(node.items) == 2 else None
    if isinstance(node, Collection):
        return _of_collection(node)
    if _is_reals(node):
        return [_ALL]
    return _of_relation(node) if isinstance(node, Relation) else None


def _is_reals(node: Node) -> bool:
    return isinstance(node, Formula) and node.tree == ("sym", "mathbb:R")


def _of_collection(node: Collection) -> list[Sequence] | None:
    if node.kind == "set":
        return None
    if node.kind == "difference":
        base, removed = _intervals(node.items[0]), node.items[1]
        if base is None or len(base) > 1 or not isinstance(removed, Collection):
            return None
        return _without(base[0], list(removed.items))
    first, *rest = node.items or (node,)
    if isinstance(first, Relation) and first.ops == ("!=",) and relations.name_of(first.sides[0]):
        # x != 1, 2 and x != 1, x != 2
        points = [first.sides[1]]
        for item in rest:
            if not isinstance(item, Relation):
                points.append(item)
            elif item.ops == ("!=",) and subject(item) == subject(first):
                points.append(item.sides[1])
            else:
                return None
        return _without(_ALL, points)
    if subject(node) == "?":
        return None
    found = []
    for item in node.items:
        if node.kind == "union" and isinstance(item, Collection) and item.kind == "set":
            parts = [_interval("[", p, p, "]") for p in item.items]
        else:
            parts = _intervals(item)
        if parts is None:
            return None
        found += parts
    return found


def _of_relation(node: Relation) -> list[Sequence] | None:
    ops, sides = node.ops, node.sides
    if ops == ("in",):
        return _intervals(sides[1])
    if ops == ("!=",) and relations.name_of(sides[0]):
        return _without(_ALL, [sides[1]])
    if not set(ops) <= {"<", "<="}:
        return None
    brackets = {"<": "()", "<=": "[]"}
    if len(ops) == 2 and relations.name_of(sides[1]):
        return [_interval(brackets[ops[0]][0], sides[0], sides[2], brackets[ops[1]][1])]
    if len(ops) != 1:
        return None
    opening, closing = brackets[ops[0]]
    for side, other, inside in ((sides[0], sides[1], True), (sides[1], sides[0], False)):
        distance = _distance(side, other)
        if distance:
            low, high = distance
            if inside:
                return [_interval(opening, low, high, closing)]
            below = _interval("(", _infinite(-1), low, closing)
            return [below, _interval(opening, high, _infinite(1), ")")]
    if relations.name_of(sides[0]):
        return [_interval("(", _infinite(-1), sides[1], closing)]
    if relations.name_of(sides[1]):
        return [_interval(opening, sides[0], _infinite(1), ")")]
    return None


def _distance(side: Node, other: Node) -> tuple[Node, Node] | None:
    """(c - r, c + r) of `|x - c|` against a number r."""
    if not isinstance(side, Formula) or not isinstance(other, Formula):
        return None
    if side.tree[:2] != ("call", "abs") or symbolic.variables(other.tree):
        return None
    inner, names = side.tree[2][0], symbolic.variables(side.tree)
    shift: Tree = ("add", [("sym", min(names, default="")), ("neg", inner)])
    centre = symbolic.constant(shift)
    if len(names) != 1 or centre is None:
        return None
    low = Formula("", ("add", [centre, ("neg", other.tree)]))
    return low, Formula("", ("add", [centre, other.tree]))


def _infinite(sign: int) -> Node:
    infinity: Tree = ("sym", "inf")
    return Formula("", infinity if sign > 0 else ("neg", infinity))


def _interval(opening: str, low: Node, high: Node, closing: str) -> Sequence:
    return Sequence("", opening, (low, high), closing)


_ALL = _interval("(", _infinite(-1), _infinite(1), ")")


def _without(base: Sequence, points: list[Node]) -> list[Sequence] | None:
    """An interval less points inside it, which must be numbers if there are several."""
    if not points or len(points) > MAX_INTERVALS:
        return None
    spans = _spans([_interval("[", p, p, "]") for p in points])
    if spans is not None:
        points = [span.interval.items[0] for span in _merge(spans)]
    elif len(points) > 1:
        return None
    ends = [base.items[0], *points, base.items[1]]
    opening = [base.opening] + ["("] * len(points)
    closing = [")"] * len(points) + [base.closing]
    return [_interval(opening[i], ends[i], ends[i + 1], closing[i]) for i in range(len(points) + 1)]


def _spans(found: list[Sequence]) -> list[_Span] | None:
    spans = []
    for interval in found:
        low, high = (
            symbolic.real_value(end.tree) if isinstance(end, Formula) else None
            for end in interval.items
        )
        if low is None or high is None or low > high:
            return None
        spans.append(_Span(low, high, interval))
    return spans


def _merge(spans: list[_Span]) -> list[_Span]:
    """Disjoint spans from left to right."""
    merged: list[_Span] = []
    for span in sorted(spans, key=lambda s: (s.low, s.open_low)):
        last = merged[-1] if merged else None
        touch = last and (
            span.low < last.high or span.low == last.high and not (span.open_low and last.open_high)
        )
        if not last or not touch:
            merged.append(span)
        elif (span.high, not span.open_high) > (last.high, not last.open_high):
            low, high = last.interval, span.interval
            joined = _interval(low.opening, low.items[0], high.items[1], high.closing)
            merged[-1] = _Span(last.low, span.high, joined)
    return merged


def _apart(left: _Span, right: _Span) -> bool:
    """Whether something lies between two spans."""
    return left.high < right.low or left.high == right.low and left.open_high and right.open_low


def _common(nodes: tuple[Node, ...]) -> list[_Span]:
    """What sets that have spans share."""
    shared = [_Span(-symbolic.INFINITY, symbolic.INFINITY, _ALL)]
    for node in nodes:
        spans = _spans(as_intervals(node) or []) or []
        shared = [both for a in shared for b in spans if (both := _overlap(a, b))]
    return _merge(shared)


def _overlap(a: _Span, b: _Span) -> _Span | None:
    """What two spans share."""
    low = max(a, b, key=lambda s: (s.low, s.open_low))
    high = min(a, b, key=lambda s: (s.high, not s.open_high))
    if low.low > high.high or low.low == high.high and (low.open_low or high.open_high):
        return None
    ends = low.interval.items[0], high.interval.items[1]
    joined = _interval(low.interval.opening, *ends, high.interval.closing)
    return _Span(low.low, high.high, joined)


def _is_all(spans: list[_Span]) -> bool:
    infinity = symbolic.INFINITY
    return [(span.low, span.high) for span in spans] == [(-infinity, infinity)]
