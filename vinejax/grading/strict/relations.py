"""Equations and inequalities: the same solutions, an interval, or a value behind its name."""

import re

from vinejax.grading.strict import symbolic, words
from vinejax.grading.strict.expression import Tree
from vinejax.grading.strict.marks import CLOSE, OPEN
from vinejax.grading.strict.nodes import (
    Formula,
    Node,
    Ratio,
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


def name_of(node: Node) -> str:
    """The source of a side that only names something, '' for any other."""
    return node.source.strip() if _is_name(node) else ""


def _is_name(node: Node) -> bool:
    """Whether a left side only names what the right side says: x, f(x), AB, NO/BO, (x, y)."""
    if isinstance(node, Text):
        return True
    if isinstance(node, Raw):
        # A\\cap B, \\angle ABC, or a product of matrices that is said to be a number
        return node.source[:1].isalpha() or "\\" in node.source
    if isinstance(node, Sequence):
        return all(_is_name(item) for item in node.items)
    if isinstance(node, Ratio):  # a:b = 1:2
        return not node.unit and all(_is_name(part) for part in node.parts)
    if not isinstance(node, Formula) or not _only_symbols(node.tree):
        return False
    return not node.unit or node.unit.strip(OPEN + CLOSE).isupper()  # \angle ABC


def is_y_of_x(a: Node, b: Node) -> bool:
    """Whether one is y and the other f(x): two names of the same function."""
    names = [re.sub(r"\s|\\", "", node.source) for node in (a, b)]
    return any(x == "y" and re.fullmatch(r"[fgh]\(x\)", y) for x, y in (names, names[::-1]))


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
