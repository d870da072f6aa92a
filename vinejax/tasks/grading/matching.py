"""Whether two structures say the same: the rules of `strict`, symmetric in their two sides."""

import re
from collections import Counter
from collections.abc import Sequence as Nodes
from fractions import Fraction

from vinejax.tasks.grading import measures, numbers, real_sets, relations, symbolic, words
from vinejax.tasks.grading.expression import Tree
from vinejax.tasks.grading.nodes import (
    Based,
    Collection,
    Formula,
    Matrix,
    Node,
    Ratio,
    Raw,
    Relation,
    Sequence,
    Text,
)

MAX_PAIRINGS = 60  # items of lists compared each with each; longer lists must match in order


def same(a: Node, b: Node) -> bool:
    """Whether a mathematician would take one for the other."""
    if key(a.source) == key(b.source) and a.source:
        return True
    for x, y in ((a, b), (b, a)):  # (B) 12 against B
        label = _label(x)
        if words.choice(label) and not _label(y) and words.same_text(label, y.source):
            return True
    x, y = measures.clock(a), measures.clock(b)
    if x and y and not (isinstance(a, Formula) and isinstance(b, Formula)):
        return measures.same_time(x, y) or (not _is_clock(a, b) and _ratio(a, b))
    if isinstance(a, Text) or isinstance(b, Text):
        return _same_text(a, b)
    if isinstance(a, Relation) or isinstance(b, Relation):
        return _relation(a, b)
    if isinstance(a, Collection) or isinstance(b, Collection):
        return _collection(a, b)
    if isinstance(a, Matrix) or isinstance(b, Matrix):
        return _matrix(a, b) or _matrix(b, a)
    if isinstance(a, Sequence) and isinstance(b, Sequence):
        pairs = len(a.items) == 2  # (0,1) is not [0,1]; brackets of longer tuples mean nothing
        brackets = (a.opening, a.closing) == (b.opening, b.closing)
        return (brackets or not pairs) and _in_order(a.items, b.items)
    if _interval_like(a) and _interval_like(b):
        return _intervals(a, b)
    if isinstance(a, Ratio) or isinstance(b, Ratio):
        return _ratio(a, b)
    if isinstance(a, Based) and isinstance(b, Based):
        return (a.digits, a.base) == (b.digits, b.base)
    if isinstance(a, Formula) and isinstance(b, Formula):
        return _formula(a, b)
    return _same_text(a, b) if isinstance(a, Raw) and isinstance(b, Raw) else False


def _label(node: Node) -> str:
    """The `(B)` of `(B) 12`; '' without one."""
    return node.prefix if isinstance(node, Formula) and node.prefix else words.label(node.source)


def key(source: str) -> str:
    """A string without the spaces and braces that mean nothing: `x ^{2}` is `x^2`."""
    bare = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", source).rstrip(".")
    return re.sub(r"([_^])\{(\w)\}(?!\d)", r"\1\2", bare)


def _same_text(a: Node, b: Node) -> bool:
    if isinstance(a, Raw) and isinstance(b, Raw):
        # Neither was understood: the same words, or nothing.
        wordy = all(re.fullmatch(r"[^\\^_{}|]*", n.source) for n in (a, b))
        return wordy and words.same_words(a.source, b.source)
    if not a.source or not b.source:
        return False
    if words.same_text(a.source, b.source):
        return True
    for text, other in ((a, b), (b, a)):
        value = relations.named_value(other)
        if isinstance(text, Text) and value and words.same_text(text.source, value[1].source):
            return True
    return False


def _formula(a: Formula, b: Formula) -> bool:
    if a.prefix and b.prefix and words.text_key(a.prefix) != words.text_key(b.prefix):
        return False
    x, y = _measure(a), _measure(b)
    if x and y and x != y and {x, y} != {"degree", "radian"}:
        found = measures.scale(x), measures.scale(y)
        if not (found[0] and found[1]) or found[0][0] != found[1][0]:
            return False
        return symbolic.same(_times(a.tree, found[0][1]), _times(b.tree, found[1][1]))
    if symbolic.same(a.tree, b.tree):
        return True
    # 5 m, read as a product, against 5 \text{ m}
    for unit, tree, other in ((x, a.tree, b), (y, b.tree, a)):
        product = measures.as_product(tree, unit, other.tree) if unit and not other.unit else None
        if product:
            return symbolic.same(product, other.tree)
    return False


def _times(tree: Tree, factor: Fraction) -> Tree:
    return ("mul", [tree, ("num", factor, str(factor))])


def _measure(formula: Formula) -> str:
    """The unit of measure, '' without one; a degree mark and a per cent sign are units too."""
    mark = {"deg": "degree", "pct": "percent"}.get(formula.tree[0], "")
    return words.unit_key(formula.unit) or mark


def _in_order(a: Nodes[Node], b: Nodes[Node]) -> bool:
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))


def _any_order(a: Nodes[Node], b: Nodes[Node]) -> bool:
    """A pairing of equal items; equality is transitive, so the first match serves."""
    if len(a) != len(b):
        return False
    if len(a) > MAX_PAIRINGS:
        return _same_numbers(a, b) or _in_order(a, b)
    left = list(b)
    for item in a:
        found = next((i for i, other in enumerate(left) if same(item, other)), None)
        if found is None:
            return False
        del left[found]
    return True


def _same_numbers(a: Nodes[Node], b: Nodes[Node]) -> bool:
    """Long lists in another order, if they hold plain numbers only."""
    x, y = ([numbers.plain(node.source) for node in nodes] for nodes in (a, b))
    return None not in x and Counter(x) == Counter(y)


def _within(a: Nodes[Node], b: Nodes[Node]) -> bool:
    return len(a) * len(b) <= MAX_PAIRINGS**2 and all(any(same(x, y) for y in b) for x in a)


def _collection(a: Node, b: Node) -> bool:
    if isinstance(a, Collection) and isinstance(b, Collection):
        if {a.kind, b.kind} & {"intersection", "difference"}:
            return _intervals(a, b) or a.kind == b.kind and _in_order(a.items, b.items)
        if len(a.items) != len(b.items) and _repeats(a) and _repeats(b):
            return _within(a.items, b.items) and _within(b.items, a.items)
        if _named(a) != _named(b) and (_named(a) or _named(b)):
            # x = 1, y = 2 against 1, 2: the order says which is which.
            return _in_order(_values(a), _values(b))
        if _any_order(_shared_name(a), _shared_name(b)):
            return True
        return _intervals(a, b)
    many, one = (a, b) if isinstance(a, Collection) else (b, a)
    assert isinstance(many, Collection)
    if isinstance(one, Sequence) and many.kind == "list":
        brackets = one.opening + one.closing
        ordered = brackets == "()" or (brackets == "[]" and len(one.items) > 2)
        if ordered and _in_order(_values(many), one.items):
            return True
    if len(many.items) == 1:
        return same(many.items[0], one)
    return _intervals(many, one)


def _repeats(node: Collection) -> bool:
    """Whether an item said twice is said once: in sets, and in lists of points."""
    return node.kind == "set" or all(isinstance(item, Sequence) for item in node.items)


def _named(node: Collection) -> tuple[str, ...]:
    """The names of `x = 1, y = 2` if they all differ; () for anything else."""
    found = [relations.named_value(item) for item in node.items]
    names = [key(f[0].source) for f in found if f]
    if len({name.partition("_")[0] for name in names}) == 1:
        return ()  # x_1 = 2, x_2 = 5: roots, in any order
    return tuple(sorted(names)) if len(set(names)) == len(node.items) > 1 else ()


def _values(node: Collection) -> list[Node]:
    found = [relations.named_value(item) for item in node.items]
    return [f[1] if f else item for f, item in zip(found, node.items, strict=True)]


def _shared_name(node: Collection) -> Nodes[Node]:
    """`n = 1, 2, 3` names the list, not its first item."""
    first, *rest = node.items or (Raw(""),)
    value = relations.named_value(first)
    if value and not any(isinstance(item, Relation) for item in rest):
        return [value[1], *rest]
    return node.items


def _interval_like(node: Node) -> bool:
    return (
        isinstance(node, Formula) and node.tree == ("sym", "mathbb:R") or isinstance(node, Sequence)
    )


def _intervals(a: Node, b: Node) -> bool:
    """Inequalities, intervals and unions as sets of intervals."""
    names = {real_sets.subject(a), real_sets.subject(b)} - {""}
    if len(names) > 1 or "?" in names:
        return False
    x, y = real_sets.as_intervals(a), real_sets.as_intervals(b)
    return bool(x and y) and _any_order(x or [], y or [])


def _relation(a: Node, b: Node) -> bool:
    if isinstance(a, Relation) and isinstance(b, Relation):
        if a.ops == b.ops and _in_order(a.sides, b.sides):
            return True
        if relations.same_solutions(a, b) or _intervals(a, b):
            return True
        x, y = relations.named_value(a), relations.named_value(b)
        if x and y and relations.is_y_of_x(x[0], y[0]) and same(x[1], y[1]):
            return True
        # x = 5 + 6 = 11 against x = 11: a chain ends in what it says.
        return bool(
            x and y and max(len(a.ops), len(b.ops)) > 1 and same(x[0], y[0]) and same(x[1], y[1])
        )
    relation, other = (a, b) if isinstance(a, Relation) else (b, a)
    value = relations.named_value(relation)
    if value is not None and same(value[1], other):
        return True
    return _intervals(relation, other)


def _matrix(a: Node, b: Node) -> bool:
    if not isinstance(a, Matrix):
        return False
    if isinstance(b, Matrix):
        return (
            a.bars == b.bars and len(a.rows) == len(b.rows) and all(map(_in_order, a.rows, b.rows))
        )
    if isinstance(b, Sequence) and all(isinstance(row, Sequence) for row in b.items):
        rows = [row.items for row in b.items if isinstance(row, Sequence)]
        return not a.bars and len(rows) == len(a.rows) and all(map(_in_order, a.rows, rows))
    vector = [cell for row in a.rows for cell in row]
    if isinstance(b, Sequence) and (b.opening, b.closing) == ("(", ")"):
        return 1 in (len(a.rows), len(a.rows[0])) and not a.bars and _in_order(vector, b.items)
    return len(vector) == 1 and same(vector[0], b)


def _ratio(a: Node, b: Node) -> bool:
    """Ratios are proportional; a time of day is a ratio whose second part has two digits."""
    if isinstance(a, Ratio) and isinstance(b, Ratio):
        if not words.same_unit(a.unit, b.unit) or len(a.parts) != len(b.parts):
            return False
        if _is_clock(a, b):
            return _in_order(a.parts, b.parts)
        (x, *xs), (y, *ys) = ([p.tree for p in r.parts if isinstance(p, Formula)] for r in (a, b))
        products = zip(xs, ys, strict=True)
        return all(symbolic.same(("mul", [x, v]), ("mul", [y, u])) for u, v in products)
    ratio, other = (a, b) if isinstance(a, Ratio) else (b, a)
    if not isinstance(ratio, Ratio) or not isinstance(other, Formula) or len(ratio.parts) != 2:
        return False
    top, bottom = (p.tree for p in ratio.parts if isinstance(p, Formula))
    return not _is_clock(ratio, ratio) and symbolic.same(("div", top, bottom), other.tree)


def _is_clock(a: Node, b: Node) -> bool:
    """Whether both look like times of day, or one cannot be anything else: 8:05, 2:30 PM."""
    sources = [node.source.strip() for node in (a, b)]
    if any(isinstance(node, Ratio) and node.unit for node in (a, b)):
        return True
    if any(re.search(r":\s*0\d\b", source) for source in sources):
        return True
    return all(re.fullmatch(r"\d{1,2}\s*:\s*[0-5]\d", source) for source in sources)
