"""The rules of mode 'strict' for whether two nodes are the same answer, in either order.

The first rules are for answers of every kind. Then follow the rules for formulas and the words
beside them, and the rules for the items of two lists, in order or in any order.
"""

import functools
import re
from collections import Counter
from collections.abc import Sequence as Nodes
from fractions import Fraction

from vinejax.grading.strict import numbers
from vinejax.grading.strict.algebra import symbolic
from vinejax.grading.strict.algebra import syntax_trees as trees
from vinejax.grading.strict.algebra.syntax_trees import Product, Quotient, variables
from vinejax.grading.strict.answers import measures, nodes, reader, real_sets, relations
from vinejax.grading.strict.answers.nodes import Collection, Formula, Node, source_key
from vinejax.grading.strict.english import units, words

# The most characters in all pairs of items of two lists; longer lists must match in order. A
# character costs up to 0.1 ms, and no comparison may take more than a second.
MAX_PAIRED = 10_000
_PLAIN_DIGITS = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
# A choice such as '(b)' or 'option b', whose letter is no variable
_CHOICE = re.compile(r"[^\w()]*(?:\([A-Ja-j]\)|(?i:option|choice)[^\w()]+\(?[A-Ja-j]\)?)[^\w()]*")


def same_answer(a: Node, b: Node) -> bool:
    """Whether a mathematician would accept one answer for the other, as `B` or 12 for `(B) 12`."""
    return _same(a, b) or _same_choice(a, b)


def _same(a: Node, b: Node) -> bool:
    """Whether two nodes, which may be parts of answers, are equal."""
    if source_key(a.source) == source_key(b.source) and a.source:
        return True
    x, y = measures.time_of_day(a), measures.time_of_day(b)
    if x and y and not (isinstance(a, Formula) and isinstance(b, Formula)):
        return measures.same_time(x, y) or (not _is_clock(a, b) and _ratio(a, b))
    if isinstance(a, nodes.Text) or isinstance(b, nodes.Text):
        return _same_text(a, b)
    if isinstance(a, nodes.Relation) or isinstance(b, nodes.Relation):
        return _relation(a, b)
    if isinstance(a, Collection) or isinstance(b, Collection):
        return _collection(a, b)
    if isinstance(a, nodes.Matrix) or isinstance(b, nodes.Matrix):
        return _matrix(a, b) or _matrix(b, a)
    if isinstance(a, nodes.Sequence) and isinstance(b, nodes.Sequence):
        pairs = len(a.items) == 2  # (0,1) is not [0,1]; brackets of longer tuples mean nothing
        brackets = (a.opening, a.closing) == (b.opening, b.closing)
        return (brackets or not pairs) and _in_order(a.items, b.items)
    if all(isinstance(node, nodes.Sequence) or real_sets.is_reals(node) for node in (a, b)):
        return _intervals(a, b)
    if isinstance(a, nodes.Ratio) or isinstance(b, nodes.Ratio):
        return _ratio(a, b)
    if isinstance(a, nodes.Based) or isinstance(b, nodes.Based):
        return _same_based(a, b)
    if isinstance(a, Formula) and isinstance(b, Formula):
        return _same_formula(a, b)
    return _same_text(a, b) if isinstance(a, nodes.Raw) and isinstance(b, nodes.Raw) else False


def _same_based(a: Node, b: Node) -> bool:
    """Whether two numbers have the same digits and the same base; one side may leave out its base.

    Data sets and models leave it out where the problem names it: 'Express your answer in base 3.'
    """
    x, y = _digits_and_base(a), _digits_and_base(b)
    if x is None or y is None or x[0] != y[0]:
        return False
    return x[1] == y[1] or None in (x[1], y[1])


def _digits_and_base(node: Node) -> tuple[str, int | None] | None:
    """The digits of a number and its base, if it states one; None for other nodes.

    The number may be a formula such as `2a_{16}` or `204`.
    """
    if isinstance(node, nodes.Based):
        return node.digits, node.base
    if not isinstance(node, Formula):
        return None
    if _PLAIN_DIGITS.fullmatch(node.source):
        return numbers.without_zeros(node.source), None
    return numbers.read_based(node.source.upper())


def _same_choice(a: Node, b: Node) -> bool:
    """Whether two choices agree, or one answer is the wording of the choice in the other."""
    x, y = reader.read_choice(a.source), reader.read_choice(b.source)
    if x and y:
        same_letter = x[0] == y[0]
        if not same_letter and any(map(_CHOICE.fullmatch, (a.source, b.source))):
            same_letter = x[0].casefold() == y[0].casefold()
        return same_letter and (x[1] is None or y[1] is None or _same(x[1], y[1]))
    wording, other = (x[1], b) if x else (y[1] if y else None, a)
    return wording is not None and _same(wording, other)


def _same_text(a: Node, b: Node) -> bool:
    if isinstance(a, nodes.Raw) and isinstance(b, nodes.Raw):
        # No parser could read them, so they are equal only if their words are.
        wordy = all(re.fullmatch(r"[^\\^_{}|]*", n.source) for n in (a, b))
        return wordy and words.same_words(a.source, b.source)
    if words.same_words(a.source, b.source):
        return True
    values = [relations.named_value(node) for node in (a, b)]
    return any(
        isinstance(text, nodes.Text) and value and words.same_words(text.source, value[1].source)
        for text, value in zip((b, a), values, strict=True)
    )


def _collection(a: Node, b: Node) -> bool:
    if isinstance(a, Collection) and isinstance(b, Collection):
        if _disagree(a, b):
            return False
        if a.kind != b.kind and {a.kind, b.kind} & {"intersection", "difference"}:
            return _intervals(a, b)
        if a.kind == b.kind == "difference":
            return _intervals(a, b) or _in_order(a.items, b.items)
        if len(a.items) != len(b.items) and _repeats(a) and _repeats(b):
            return _same_members(a.items, b.items)
        if _named(a) != _named(b):
            if _named(a) and _named(b):  # x = 1, y = 2 against a = 1, b = 2
                return _in_any_order(a.items, b.items)
            # x = 1, y = 2 against 1, 2: values are matched in order.
            return _in_order(_values(a), _values(b))
        by_noun = _by_noun(a, b)
        if by_noun is not None:
            return by_noun
        return _in_any_order(_with_shared_name(a), _with_shared_name(b)) or _intervals(a, b)
    many, other = (a, b) if isinstance(a, Collection) else (b, a)
    assert isinstance(many, Collection)
    if isinstance(other, nodes.Sequence) and many.kind == "list" and many.joiner != "or":
        brackets = other.opening + other.closing
        ordered = brackets == "()" or (brackets == "[]" and len(other.items) > 2)
        if ordered and _in_order(_values(many), other.items):
            return True
    if len(many.items) == 1:
        return _same(many.items[0], other)
    return _intervals(many, other) or _is_one_value(many) and _same_members(many.items, [other])


def _is_one_value(many: Collection) -> bool:
    """Whether `or` joins forms of one value, as in `1/2 or 50%`."""
    if many.joiner != "or" or not _is_affordable(many.items[:1], many.items):
        return False
    return all(_same(many.items[0], item) for item in many.items)


def _disagree(a: Collection, b: Collection) -> bool:
    """Whether one list has `and`, the other `or`, and not all items are plain values."""
    if {a.joiner, b.joiner} != {"and", "or"}:
        return False
    for item in (*a.items, *b.items):
        value = relations.named_value(item)
        content = value[1] if value and not _named(a) + _named(b) else item
        if isinstance(content, Formula) and variables(content.tree):
            return True
        if not isinstance(content, Formula | nodes.Sequence | Collection):
            return True
    return False


def _by_noun(a: Collection, b: Collection) -> bool | None:
    """Whether lists of counts such as `5 boys, 3 girls` agree; None if an item has no noun."""
    x, y = ({units.nouns(i.unit): i for i in n.items if isinstance(i, Formula)} for n in (a, b))
    if not len(x) == len(a.items) == len(b.items) == len(y) or frozenset() in (*x, *y):
        return None
    return (
        all(_same(x[n], y[n]) for n in x) if x.keys() == y.keys() else _in_order(a.items, b.items)
    )


def _repeats(node: Collection) -> bool:
    """Whether repeated items count once, as in sets and in lists of points."""
    return node.kind == "set" or all(isinstance(item, nodes.Sequence) for item in node.items)


def _named(node: Collection) -> tuple[str, ...]:
    """The sorted names of a list such as `x = 1, y = 2` if all differ; () for other lists."""
    pairs = [relations.named_value(item) for item in node.items]
    names = [source_key(pair[0].source) for pair in pairs if pair]
    if len({name.partition("_")[0] for name in names}) == 1:
        return ()  # x_1 = 2, x_2 = 5 are roots and have no order
    return tuple(sorted(names)) if len(set(names)) == len(node.items) > 1 else ()


def _values(node: Collection) -> list[Node]:
    pairs = [relations.named_value(item) for item in node.items]
    return [pair[1] if pair else item for pair, item in zip(pairs, node.items, strict=True)]


def _with_shared_name(node: Collection) -> Nodes[Node]:
    """The items of a list. In a list such as `n = 1, 2, 3`, every item gets the name `n`.

    This is done if the first item has a name and no other item is a relation.
    """
    first, *rest = node.items or (nodes.Raw(""),)
    value = relations.named_value(first)
    if not value or any(isinstance(item, nodes.Relation) for item in rest):
        return node.items
    name = value[0]
    others = [nodes.Relation(f"{name.source}={item.source}", (name, item), ("=",)) for item in rest]
    return [first, *others]


def _intervals(a: Node, b: Node) -> bool:
    """Whether both nodes (inequalities, intervals or unions) are the same set of real numbers."""
    names = {real_sets.subject_of(a), real_sets.subject_of(b)} - {""}
    if len(names) > 1 or "?" in names:
        return False
    x, y = real_sets.as_intervals(a), real_sets.as_intervals(b)
    return bool(x and y) and _in_any_order(x or [], y or [])


def _relation(a: Node, b: Node) -> bool:
    if isinstance(a, nodes.Relation) and isinstance(b, nodes.Relation):
        if a.ops == b.ops and _in_order(a.sides, b.sides):
            return True
        if relations.same_solutions(a, b) or _intervals(a, b):
            return True
        x, y = relations.named_value(a), relations.named_value(b)
        if not x or not y or not _same(x[1], y[1]):
            return False
        # x = 5 + 6 = 11 against x = 11: the last side of a chain is its value.
        is_chain = max(len(a.ops), len(b.ops)) > 1
        return relations.is_y_of_x(x[0], y[0]) or is_chain and _same(x[0], y[0])
    relation, other = (a, b) if isinstance(a, nodes.Relation) else (b, a)
    value = relations.named_value(relation)
    if value is not None and _same(value[1], other):
        return not _names_others(value[0], other)
    return _intervals(relation, other)


def _names_others(name: Node, values: Node) -> bool:
    """Whether the names in `values` are not the items of the tuple `name`.

    For example, `a = 1, b = 2` has other names than the tuple `(x, y)`. False if `values` has no
    names or `name` is no tuple.
    """
    names = _named(values) if isinstance(values, Collection) else ()
    if not names or not isinstance(name, nodes.Sequence):
        return False
    return names != tuple(sorted(source_key(item.source) for item in name.items))


def _matrix(a: Node, b: Node) -> bool:
    if not isinstance(a, nodes.Matrix):
        return False
    if isinstance(b, nodes.Matrix):
        same_shape = a.bars == b.bars and len(a.rows) == len(b.rows)
        return same_shape and all(map(_in_order, a.rows, b.rows))
    if isinstance(b, nodes.Sequence) and all(isinstance(row, nodes.Sequence) for row in b.items):
        rows = [row.items for row in b.items if isinstance(row, nodes.Sequence)]
        return not a.bars and len(rows) == len(a.rows) and all(map(_in_order, a.rows, rows))
    vector = [cell for row in a.rows for cell in row]
    if isinstance(b, nodes.Sequence) and (b.opening, b.closing) == ("(", ")"):
        return 1 in (len(a.rows), len(a.rows[0])) and not a.bars and _in_order(vector, b.items)
    return len(vector) == 1 and _same(vector[0], b)


def _ratio(a: Node, b: Node) -> bool:
    """Whether two ratios are proportional or the same time, or a ratio equals a quotient."""
    if isinstance(a, nodes.Ratio) and isinstance(b, nodes.Ratio):
        if not units.same_unit(a.unit, b.unit) or len(a.parts) != len(b.parts):
            return False
        if _is_clock(a, b):
            return _in_order(a.parts, b.parts)
        (x, *xs), (y, *ys) = ([part.tree for part in ratio.parts] for ratio in (a, b))
        products = zip(xs, ys, strict=True)
        return all(symbolic.same_value(Product((x, v)), Product((y, u))) for u, v in products)
    match (a, b) if isinstance(a, nodes.Ratio) else (b, a):
        case nodes.Ratio(parts=(top, bottom)) as ratio, Formula(tree=value):
            quotient = Quotient(top.tree, bottom.tree)
            return not _is_clock(ratio, ratio) and symbolic.same_value(quotient, value)
    return False


def _is_clock(a: Node, b: Node) -> bool:
    """Whether two nodes are to be compared as times of day, and not as proportions.

    They are if one of them must be a time: it has a unit (2:30 PM), or a leading zero behind a
    colon (8:05), which nobody writes in a proportion. A text such as 8:15 only looks like a time,
    because it can also be the proportion 8 to 15; then both nodes must look like times.
    """
    sources = [node.source.strip() for node in (a, b)]
    if any(isinstance(node, nodes.Ratio) and node.unit for node in (a, b)):
        return True
    if any(re.search(r":\s*0\d\b", source) for source in sources):
        return True
    return all(re.fullmatch(r"\d{1,2}\s*:\s*[0-5]\d", source) for source in sources)


# --- formulas


def _same_formula(a: Formula, b: Formula) -> bool:
    """Whether two formulas have equal values, units and descriptions."""
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
        sizes = trees.number(scales[0][1]), trees.number(scales[1][1])
        return symbolic.same_value(Product((a.tree, sizes[0])), Product((b.tree, sizes[1])))
    if symbolic.same_value(a.tree, b.tree):
        return True
    # 5 m, read as a product, against 5 \text{ m}
    for formula, other in ((a, b), (b, a)):
        product = measures.unit_as_factor(formula.tree, formula.unit, other.tree)
        if product and not other.unit:
            return symbolic.same_value(product, other.tree)
    return False


def _same_description(a: Formula, b: Formula) -> bool:
    """False if words other than units distinguish the formulas, as in `n even` and `n odd`."""
    if any(isinstance(node.tree, trees.Symbol) and variables(node.tree) for node in (a, b)):
        return units.nouns(a.unit) == units.nouns(b.unit)  # \triangle ABC has a name in its words
    return units.same_description(a.unit, b.unit)


def _measure(formula: Formula) -> str:
    """The unit of a formula or ''; a degree mark and a per cent sign count as units."""
    mark = formula.tree.mark if isinstance(formula.tree, trees.Marked) else ""
    return units.unit_key(formula.unit) or {"deg": "degree", "pct": "percent"}.get(mark, "")


# --- pairs of items


def _in_order(a: Nodes[Node], b: Nodes[Node]) -> bool:
    return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))


def _in_any_order(a: Nodes[Node], b: Nodes[Node]) -> bool:
    """Whether every item of `a` has a partner of its own in `b`.

    Equality is not transitive (5% is 5 and 0.05), so the first match of an item may be wrong.
    Augmenting paths find the partners.
    """
    if len(a) != len(b):
        return False
    a, b = _unpaired(a, b), _unpaired(b, a)
    if not _is_affordable(a, b):
        return _in_order(a, b)
    equal = functools.cache(lambda i, j: _same(a[i], b[j]))
    partners: dict[int, int] = {}  # index in b -> index in a

    def place(i: int, tried: set[int]) -> bool:
        for j in sorted(range(len(b)), key=lambda j: j != i):
            if j not in tried and equal(i, j):
                tried.add(j)
                if j not in partners or place(partners[j], tried):
                    partners[j] = i
                    return True
        return False

    return all(place(i, set()) for i in range(len(a)))


def _same_members(a: Nodes[Node], b: Nodes[Node]) -> bool:
    """Whether every item of each list equals an item of the other list."""
    if not _is_affordable(a, b):
        return False
    found = all(any(_same(x, y) for y in b) for x in a)
    return found and all(any(_same(y, x) for x in a) for y in b)


def _unpaired(a: Nodes[Node], b: Nodes[Node]) -> list[Node]:
    """The items of `a` without a partner in `b` that is the same text or the same number."""
    partners = Counter(map(_identity, b))
    left = []
    for item in a:
        identity = _identity(item)
        if item.source and partners[identity] > 0:
            partners[identity] -= 1
        else:
            left.append(item)
    return left


def _identity(node: Node) -> Fraction | str:
    value = numbers.read_rational(node.source)
    return source_key(node.source) if value is None else value


def _is_affordable(a: Nodes[Node], b: Nodes[Node]) -> bool:
    size_a, size_b = (sum(map(_size, items)) for items in (a, b))
    return len(a) * size_b + len(b) * size_a <= MAX_PAIRED


def _size(node: Node) -> int:
    """The number of characters to compare.

    Each of the n items of a collection counts n times, because their order is free: an item may be
    compared with n others.
    """
    if isinstance(node, Collection):
        return len(node.items) * sum(map(_size, node.items))
    if isinstance(node, nodes.Sequence):
        return sum(map(_size, node.items))
    return len(node.source)
