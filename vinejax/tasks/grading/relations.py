"""Equations and inequalities: the same solutions, an interval, or a value behind its name."""

from vinejax.tasks.grading import symbolic, words
from vinejax.tasks.grading.expression import Tree
from vinejax.tasks.grading.structures import (
    Collection,
    Formula,
    Node,
    Raw,
    Relation,
    Sequence,
    Text,
)


def named_value(node: Node) -> tuple[Node, Node] | None:
    """(name, value) of `x = 5`, `5 = x`, `f(x) = ...`, `a = b = 5`; None for other nodes."""
    if not isinstance(node, Relation) or set(node.ops) - {"=", "in"}:
        return None
    first, last = node.sides[0], node.sides[-1]
    if _is_name(first) or (len(node.sides) > 2 and node.ops[0] == "="):
        return first, last
    if _is_name(last) and node.ops == ("=",):
        return last, first
    if isinstance(first, Formula) and not symbolic.variables(first.tree):
        return first, last  # 2 + 3 = 5
    return None


def _is_name(node: Node) -> bool:
    """Whether a left side only names what the right side says: x, f(x), AB, NO/BO, (x, y)."""
    if isinstance(node, Text):
        return True
    if isinstance(node, Raw):
        return node.source[:1].isalpha() or node.source.startswith("\\")
    if isinstance(node, Sequence):
        return all(_is_name(item) for item in node.items)
    return isinstance(node, Formula) and not node.unit and _only_symbols(node.tree)


def _only_symbols(tree: Tree) -> bool:
    if tree[0] == "sym":
        return tree[1] not in ("pi", "inf")
    if tree[0] == "mul":
        return all(_only_symbols(t) for t in tree[1]) or _is_application(tree)
    if tree[0] == "div":
        return _only_symbols(tree[1]) and _only_symbols(tree[2])
    if tree[0] == "pow":  # f^{-1}
        return _only_symbols(tree[1]) and tree[2][0] == "neg"
    named = tree[0] == "call" and tree[1] in {"abs", *words.FUNCTIONS}
    return named and all(map(_only_symbols, tree[2]))


def _is_application(tree: Tree) -> bool:
    """`f(2)`, read as a product of f and a constant."""
    head, *rest = tree[1]
    return head[0] == "sym" and head[1][0] in "fghpqPF" and all(t[0] == "num" for t in rest)


def _difference(a: Node, b: Node) -> Tree | None:
    if isinstance(a, Formula) and isinstance(b, Formula):
        return ("add", [b.tree, ("neg", a.tree)])
    return None


def same_solutions(a: Relation, b: Relation) -> bool:
    """Two equations, or two inequalities, that are multiples of each other."""
    operator = a.ops[0]
    if len(a.ops) > 1 or a.ops != b.ops or operator == "in":
        return False
    x, y = _difference(*a.sides), _difference(*b.sides)
    if x is None or y is None:
        return False
    sign = symbolic.ratio(x, y)
    return sign > 0 if operator in ("<", "<=") else sign != 0


def as_intervals(node: Node) -> list[Sequence] | None:
    """The intervals that `x < 2`, `-2 <= x <= 7`, `x != 3` or a list of such stands for."""
    if isinstance(node, Sequence):
        return [node] if len(node.items) == 2 else None
    if isinstance(node, Collection):
        if node.kind == "set":
            return None
        parts = [as_intervals(item) for item in node.items]
        if any(p is None for p in parts):
            return None
        return [interval for part in parts for interval in part or []]
    if isinstance(node, Formula) and node.tree == ("sym", "mathbb:R"):
        return [_interval("(", _infinite(-1), _infinite(1), ")")]
    return _of_relation(node) if isinstance(node, Relation) else None


def _of_relation(node: Relation) -> list[Sequence] | None:
    ops, sides = node.ops, node.sides
    if ops == ("in",):
        return as_intervals(sides[1])
    if ops == ("!=",) and _is_name(sides[0]):
        point = sides[1]
        return [
            _interval("(", _infinite(-1), point, ")"),
            _interval("(", point, _infinite(1), ")"),
        ]
    if not set(ops) <= {"<", "<="}:
        return None
    brackets = {"<": "()", "<=": "[]"}
    if len(ops) == 2 and _is_name(sides[1]):
        return [_interval(brackets[ops[0]][0], sides[0], sides[2], brackets[ops[1]][1])]
    if len(ops) == 1 and _is_name(sides[0]):
        return [_interval("(", _infinite(-1), sides[1], brackets[ops[0]][1])]
    if len(ops) == 1 and _is_name(sides[1]):
        return [_interval(brackets[ops[0]][0], sides[0], _infinite(1), ")")]
    return None


def _infinite(sign: int) -> Node:
    infinity: Tree = ("sym", "inf")
    return Formula("", infinity if sign > 0 else ("neg", infinity))


def _interval(opening: str, low: Node, high: Node, closing: str) -> Sequence:
    return Sequence("", opening, (low, high), closing)
