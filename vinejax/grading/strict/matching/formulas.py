"""Compares two formulas together with the words beside them."""

from fractions import Fraction

from vinejax.grading.strict.algebra import symbolic
from vinejax.grading.strict.algebra import syntax_trees as trees
from vinejax.grading.strict.algebra.syntax_trees import Tree, variables
from vinejax.grading.strict.answers import measures
from vinejax.grading.strict.answers.nodes import Formula
from vinejax.grading.strict.english import units, words


def same_formula(a: Formula, b: Formula) -> bool:
    """Whether two formulas are equal in value, unit and description."""
    if a.prefix and b.prefix and words.text_key(a.prefix) != words.text_key(b.prefix):
        return False
    if not _same_description(a, b):
        return False
    x, y = _measure(a), _measure(b)
    if "radian" in (x, y) and {x, y} <= {"radian", "degree", ""}:  # here a degree mark counts
        return symbolic.same_value(a.tree, b.tree, counting=frozenset({"deg"}))
    if x and y and x != y:
        scales = measures.unit_scale(x), measures.unit_scale(y)
        if not (scales[0] and scales[1]) or scales[0][0] != scales[1][0]:
            return False
        return symbolic.same_value(_times(a.tree, scales[0][1]), _times(b.tree, scales[1][1]))
    if symbolic.same_value(a.tree, b.tree):
        return True
    # 5 m, read as a product, against 5 \text{ m}
    for formula, other in ((a, b), (b, a)):
        product = measures.unit_as_factor(formula.tree, formula.unit, other.tree)
        if product and not other.unit:
            return symbolic.same_value(product, other.tree)
    return False


def _same_description(a: Formula, b: Formula) -> bool:
    """False if words other than units tell two formulas apart: `n` even, `n` odd."""
    if any(isinstance(node.tree, trees.Symbol) and variables(node.tree) for node in (a, b)):
        return units.nouns(a.unit) == units.nouns(b.unit)  # \triangle ABC: a name in the words
    return units.same_description(a.unit, b.unit)


def _times(tree: Tree, factor: Fraction) -> Tree:
    return trees.Product((tree, trees.number(factor)))


def _measure(formula: Formula) -> str:
    """The unit of a formula or ''; a degree mark and a per cent sign count as units."""
    mark = formula.tree.mark if isinstance(formula.tree, trees.Marked) else ""
    return units.unit_key(formula.unit) or {"deg": "degree", "pct": "percent"}.get(mark, "")
