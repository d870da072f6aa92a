"""Splits `x = 5` into name and value, and decides whether relations are multiples of each other."""

import re
from fractions import Fraction

from vinejax.grading.strict.algebra import symbolic
from vinejax.grading.strict.algebra import syntax_trees as trees
from vinejax.grading.strict.algebra.syntax_trees import Tree, variables
from vinejax.grading.strict.answers import nodes
from vinejax.grading.strict.answers.nodes import Node
from vinejax.grading.strict.english import units, words
from vinejax.grading.strict.marks import CLOSE, OPEN


def named_value(node: Node) -> tuple[Node, Node] | None:
    """The name and the value in `x = 5`, `5 = x`, `f(x) = ..`, `a = b = 5`; else None.

    The numbers in a chain without a name must agree: `4 = 5` has no value, and neither has
    `7 = 11a + c`. After a name the last side counts.
    """
    if not isinstance(node, nodes.Relation) or set(node.ops) - {"=", "in"}:
        return None
    first, last = node.sides[0], node.sides[-1]
    if _is_name(first):
        return first, last
    if _is_name(last) and node.ops == ("=",):
        return last, first
    constants = [side for side in node.sides if _is_constant(side)]
    if not all(_agree(side, constants[-1]) for side in constants[:-1]):
        return None
    if first in constants:
        return (first, last) if last in constants else None  # 2 + 3 = 5
    return (first, last) if len(node.sides) > 2 and node.ops[0] == "=" else None


def _is_constant(side: Node) -> bool:
    return isinstance(side, nodes.Formula) and not variables(side.tree) and not _is_name(side)


def _agree(side: Node, last: Node) -> bool:
    """Whether two constants of a chain are equal, or the last is the other's decimal.

    Constants with different units, as in `1 m = 100 cm`, are not compared.
    """
    assert isinstance(side, nodes.Formula) and isinstance(last, nodes.Formula)
    if units.unit_key(side.unit) != units.unit_key(last.unit):
        return True
    if symbolic.same_value(side.tree, last.tree):
        return True
    if not isinstance(last.tree, trees.Number) or "." not in last.tree.shown:
        return False
    exact = symbolic.real_value(side.tree)
    unit = Fraction(1, 10 ** len(last.tree.shown.partition(".")[2]))
    if exact is None:
        return False
    left_out = abs(exact) - abs(last.tree.value)
    return abs(exact - last.tree.value) <= unit / 2 or 0 <= left_out < unit


def name_of(node: Node) -> str:
    """The source text of a relation's side, if the side only names a quantity; else ''."""
    return node.source.strip() if _is_name(node) else ""


def _is_name(node: Node) -> bool:
    """Whether a side of a relation only names a quantity, as x, f(x), AB, NO/BO and (x, y) do."""
    if words.denies(node.source):
        return False
    match node:
        case nodes.Text():
            return True
        case nodes.Raw(source):
            # A\\cap B, \\angle ABC, or a product of matrices that is said to be a number
            return source[:1].isalpha() or "\\" in source
        case nodes.Sequence(items=parts) | nodes.Ratio(parts=parts, unit=""):  # a:b = 1:2
            return all(map(_is_name, parts))
        case nodes.Formula(tree=tree, unit=unit) if _only_symbols(tree):
            return not unit or unit.strip(OPEN + CLOSE).isupper()  # \angle ABC
    return False


def is_y_of_x(a: Node, b: Node) -> bool:
    """Whether one node is y and the other f(x), two names of the same function."""
    names = [re.sub(r"\s|\\", "", node.source) for node in (a, b)]
    return any(x == "y" and re.fullmatch(r"[fgh]\(x\)", y) for x, y in (names, names[::-1]))


def _only_symbols(tree: Tree) -> bool:
    match tree:
        case trees.Symbol(name):
            return name not in ("pi", "inf")
        case trees.Product((trees.Symbol(name), *others)) if name[0] in "fghpqPF" and all(
            isinstance(factor, trees.Number) for factor in others
        ):  # f(2)
            return True
        case trees.Product(factors):
            return all(map(_only_symbols, factors))
        case trees.Quotient(top, bottom):
            return _only_symbols(top) and _only_symbols(bottom)
        case trees.Power(base, trees.Negative()):  # f^{-1}
            return _only_symbols(base)
        case trees.Call(name, arguments) if name == "abs" or name in words.FUNCTIONS:
            return all(map(_only_symbols, arguments))
    return False


def _labels(relation: nodes.Relation) -> set[str]:
    """The words in the names that are sides of a relation: `ABC` in `\\angle ABC = 30`."""
    names = [side for side in relation.sides if isinstance(side, nodes.Formula) and _is_name(side)]
    return {name.unit for name in names if name.unit}


def same_solutions(a: nodes.Relation, b: nodes.Relation) -> bool:
    """Whether two equations, or two inequalities, are multiples of each other."""
    operator = a.ops[0]
    if len(a.ops) > 1 or a.ops != b.ops or operator == "in" or _labels(a) != _labels(b):
        return False
    sides = [side.tree for side in (*a.sides, *b.sides) if isinstance(side, nodes.Formula)]
    if len(sides) < 4:
        return False
    differences = [trees.Sum((sides[i + 1], trees.Negative(sides[i]))) for i in (0, 2)]
    sign = symbolic.sign_of_ratio(*differences)
    return sign > 0 if operator in ("<", "<=") else sign != 0
