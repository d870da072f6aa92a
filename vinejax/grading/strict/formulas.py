"""Whether two formulas say the same with the words that stand beside them."""

from fractions import Fraction

from vinejax.grading.strict import measures, symbolic, units, words
from vinejax.grading.strict.expression import Tree
from vinejax.grading.strict.nodes import Formula


def same(a: Formula, b: Formula) -> bool:
    """Whether two formulas are the same, with the words beside them."""
    if a.prefix and b.prefix and words.text_key(a.prefix) != words.text_key(b.prefix):
        return False
    if not _same_description(a, b):
        return False
    x, y = _measure(a), _measure(b)
    if "radian" in (x, y) and {x, y} <= {"radian", "degree", ""}:  # here a degree mark counts
        return symbolic.same(_in_radians(a.tree), _in_radians(b.tree))
    if x and y and x != y:
        found = measures.scale(x), measures.scale(y)
        if not (found[0] and found[1]) or found[0][0] != found[1][0]:
            return False
        return symbolic.same(_times(a.tree, found[0][1]), _times(b.tree, found[1][1]))
    if symbolic.same(a.tree, b.tree):
        return True
    # 5 m, read as a product, against 5 \text{ m}
    for formula, other in ((a, b), (b, a)):
        product = measures.as_product(formula.tree, formula.unit, other.tree)
        if product and not other.unit:
            return symbolic.same(product, other.tree)
    return False


def _same_description(a: Formula, b: Formula) -> bool:
    """False where words that are no unit make two things of a formula: `n` even, `n` odd."""
    if any(node.tree[0] == "sym" and symbolic.variables(node.tree) for node in (a, b)):
        return units.nouns(a.unit) == units.nouns(b.unit)  # \triangle ABC: the words are its name
    return units.same_description(a.unit, b.unit)


def _in_radians(tree: Tree) -> Tree:
    """Degree marks as products with pi/180."""
    if tree[0] == "deg":
        return ("div", ("mul", [_in_radians(tree[1]), ("sym", "pi")]), _number(180))
    return tuple(
        _in_radians(part)
        if isinstance(part, tuple)
        else [_in_radians(t) for t in part]
        if isinstance(part, list)
        else part
        for part in tree
    )


def _number(value: int) -> Tree:
    return ("num", Fraction(value), str(value))


def _times(tree: Tree, factor: Fraction) -> Tree:
    return ("mul", [tree, ("num", factor, str(factor))])


def _measure(formula: Formula) -> str:
    """The unit of measure, '' without one; a degree mark and a per cent sign are units too."""
    mark = {"deg": "degree", "pct": "percent"}.get(formula.tree[0], "")
    return units.unit_key(formula.unit) or mark
