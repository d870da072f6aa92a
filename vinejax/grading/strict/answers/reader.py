"""Reads an answer from the outside in: lists and relations, then brackets, then formulas.

`read_answer` never raises. Text that it cannot read becomes a `Raw`, which equals only itself.
"""

import re

from vinejax.grading.strict import latex, numbers
from vinejax.grading.strict.algebra.parser import Malformed, parse_formula
from vinejax.grading.strict.algebra.syntax_trees import REALS, Marked, number
from vinejax.grading.strict.answers import matrices, measures, nodes, real_sets, relations
from vinejax.grading.strict.answers.nodes import Node
from vinejax.grading.strict.english import choices, parts, quantities, units, words
from vinejax.grading.strict.marks import AND, CLOSE, OPEN, OR, SEPARATORS, SET_CLOSE, SET_OPEN

MAX_DEPTH = 12
MAX_ITEMS = 3000


COMMA = re.compile(f"[{SEPARATORS}]")
_OR = re.compile(OR)
_CUP = re.compile(r"\\cup(?![A-Za-z])")
_CAP = re.compile(r"\\cap(?![A-Za-z])")
_WITHOUT = re.compile(r"\\setminus(?![A-Za-z])")
_COLON = re.compile(r":(?!=)")
_PLAIN = re.compile(r"[^\\^_{}|=<>]*[^\W\d_][^\\^_{}|=<>]*")  # words without mathematics
_DOTS = re.compile(r"\s*\\ldots\s*")
_SET = re.compile(r"^\s*(?:[(\[].*[)\]]|\\mathbb\{R\}|\\emptyset)\s*$", re.DOTALL)
_APPROX = re.compile(r"\\approx(?![A-Za-z])")
_SIGNS_IN_SET = re.compile(rf"{SET_OPEN}[^{SET_CLOSE}]*\\(?:pm|mp)(?![A-Za-z])")
_OPERATOR = re.compile(r"\\(?:le|ge|ne|in|equiv)(?![A-Za-z])|:=|<=|>=|!=|==|[=<>]")
_OPERATORS = {"\\le": "<=", "\\ge": ">=", "\\ne": "!=", "\\in": "in"}
_OPERATORS |= {"\\equiv": "=", ":=": "=", "==": "="}
_TURNED = {">": "<", ">=": "<="}
_UNIT = re.compile(
    rf"(?P<body>[^{OPEN}{CLOSE}]*[^{OPEN}{CLOSE}\s/])\s*"
    rf"(?P<unit>(?:/\s*)?{OPEN}[^{CLOSE}]*{CLOSE}"
    rf"(?:{OPEN}[^{CLOSE}]*{CLOSE}|\^\{{?-?\d\}}?|[\s/{{}}.()]|\\cdot)*)"
)
_BRACED_UNIT = re.compile(rf"(?P<body>.*[^_^{CLOSE}])\{{(?P<unit>{OPEN}[^{CLOSE}]*{CLOSE})\}}")
_NAMED = re.compile(
    rf"(?:[A-Z](?:_?\{{?\d\}}?|'+)?\s*(?=\())?(?P<body>[(\[](?P<inner>[^()\[\]{OPEN}{CLOSE}]*)[)\]])"
    rf"\s*(?P<after>{OPEN}[^{CLOSE}]*{CLOSE})?"
)
_MIXED = re.compile(r"\A(-?)\s*(\d+) (\d+)\s*/\s*(\d+)")  # 2 3/4
_PREFIX = re.compile(rf"{OPEN}([^{CLOSE}]*){CLOSE}\s*:?\s*")


def read_answer(text: str, thousands: bool = True) -> Node:
    """The node of a cleaned answer; with `thousands`, `1,000` is one number."""
    return _read(numbers.join_thousands(text) if thousands else text, 0)


def _read(s: str, depth: int) -> Node:
    s = _unwrap(s)
    if not s or depth > MAX_DEPTH:
        return nodes.Raw(s)
    for reader in (
        _parts,
        _restated,
        _list,
        _approximate,
        _signs,
        _relation,
        _union,
        _without,
        _bracketed,
    ):
        node = reader(s, depth + 1)
        if node is not None:
            return node
    matrix = matrices.read_matrix(s, depth + 1, _read)
    return _leaf(s, depth + 1) if matrix is None else matrix


def read_choice(s: str) -> tuple[str, Node | None] | None:
    """The letter of a multiple choice answer and its wording, if any; None for other answers."""
    parts = choices.split_choice(s)
    if parts is None or not parts[1]:
        return parts and (parts[0], None)
    node = read_answer(parts[1])
    return (parts[0], node) if is_understood(node) else None


def is_understood(node: Node) -> bool:
    """Whether no part of a node, except words and names, would be compared as a string."""
    if isinstance(node, nodes.Raw):
        return _PLAIN.fullmatch(node.source) is not None
    if isinstance(node, nodes.Sequence | nodes.Collection):
        return all(is_understood(item) or _DOTS.fullmatch(item.source) for item in node.items)
    if isinstance(node, nodes.Matrix):
        return all(is_understood(cell) for row in node.rows for cell in row)
    if isinstance(node, nodes.Relation):
        named = relations.named_value(node)
        return all(map(is_understood, named[1:] if named else node.sides))
    return True


def _unwrap(s: str) -> str:
    for _ in range(MAX_DEPTH):
        s = s.strip()
        if not (s.startswith("{") and latex.group_end(s, 0) == len(s) - 1):
            break
        s = s[1:-1]
    return s


def _parts(s: str, depth: int) -> Node | None:
    """The list of an answer with labelled parts, `(a) 3, (b) 5`; None for other texts.

    Parts that are not named already, as `x = 3` is, get their label as name, so that their order
    counts.
    """
    labelled = parts.split_parts(s) if depth == 1 else None
    if labelled is None:
        return None
    contents = [_read(content, depth) for _, content in labelled]
    if all(isinstance(node, nodes.Relation) and relations.named_value(node) for node in contents):
        return nodes.Collection(s, "list", tuple(contents))
    named = []
    for (mark, content), node in zip(labelled, contents, strict=True):
        name = nodes.Text(f"{OPEN}{mark}{CLOSE}")
        named.append(nodes.Relation(f"{name.source}={content}", (name, node), ("=",)))
    return nodes.Collection(s, "list", tuple(named))


def _restated(s: str, depth: int) -> Node | None:
    """The set that a text such as `x < 2 : (-\\infty, 2)` states twice; None for other texts."""
    parts = latex.split_outside_brackets(s, _COLON)[0]
    if len(parts) != 2 or not _SET.search(parts[1]):
        return None
    restated, node = _read(parts[0], depth), _read(parts[1], depth)
    kind = nodes.Sequence if parts[1].strip()[:1] in ("(", "[") else nodes.Formula
    prose = isinstance(restated, nodes.Text | nodes.Relation)
    if isinstance(restated, nodes.Collection):  # 184, x < 2: (-\infty, 2) says more than its set
        inequalities = [item for item in restated.items if isinstance(item, nodes.Relation)]
        prose = len(restated.items) in (1, len(inequalities))
    return node if prose and isinstance(node, kind | nodes.Collection) else None


def _list(s: str, depth: int) -> Node | None:
    parts, separators = latex.split_outside_brackets(s, COMMA)
    if len(parts) < 2 or len(parts) > MAX_ITEMS:
        return None
    if measure := measures.compound_measure(s):
        return measure
    if groups := _groups(s, separators, depth):
        return groups
    if {AND, OR} <= set(separators):  # `and` binds closer than `or`
        parts = latex.split_outside_brackets(s, _OR)[0]
        return _joined(s, tuple(_read(p, depth) for p in parts if p.strip()), "or")
    members = nodes.open_lists([_read(p, depth) for p in parts if p.strip()])
    # Only `and` or `or` before the last item applies to the list; in `1 and 2, 3` it is ignored.
    return _joined(s, members, {AND: "and", OR: "or"}.get(separators[-1], "")) if members else None


def _groups(s: str, separators: list[str], depth: int) -> Node | None:
    """The list of tuples that `p=5, q=2; p=7, q=2` states; None unless all groups have one form.

    `or` can stand for the semicolon. Each group becomes a relation such as (p, q) = (5, 2).
    """
    outer = next((mark for mark in (";", OR) if mark in separators), "")
    if not outer or len(separators) == separators.count(outer):
        return None
    relations_of = []
    for group in latex.split_outside_brackets(s, re.compile(outer))[0]:
        parts = latex.split_outside_brackets(group, COMMA)[0]
        pairs = [relations.named_value(_read(p, depth)) for p in parts if p.strip()]
        if len(pairs) < 2 or None in pairs:
            return None
        by_name = {nodes.source_key(pair[0].source): pair for pair in pairs if pair}
        if len(by_name) < len(pairs) or relations_of and by_name.keys() != relations_of[0].keys():
            return None
        relations_of.append(by_name)
    members = []
    for by_name in relations_of:
        sides = []
        for i in (0, 1):
            items = tuple(by_name[name][i] for name in relations_of[0])
            source = f"({','.join(item.source for item in items)})"
            sides.append(nodes.Sequence(source, "(", items, ")"))
        members.append(nodes.Relation(f"{sides[0].source}={sides[1].source}", tuple(sides), ("=",)))
    return nodes.Collection(s, "list", tuple(members))


def _joined(s: str, members: tuple[Node, ...], joiner: str) -> nodes.Collection:
    """The list of the members.

    But inequalities become a union if `or` joins them, and an intersection if `and` joins them.
    """
    joined = nodes.Collection(s, "list", members, joiner)
    if not joiner or not all(map(_restricts, members)) or real_sets.subject_of(joined) in ("", "?"):
        return joined
    return nodes.Collection(s, "union" if joiner == "or" else "intersection", members, joiner)


def _restricts(node: Node) -> bool:
    """Whether a node is an inequality, or inequalities joined by `and` or `or`."""
    if isinstance(node, nodes.Collection):
        return node.kind in ("union", "intersection") and node.joiner != ""
    return isinstance(node, nodes.Relation) and "=" not in node.ops


def _approximate(s: str, depth: int) -> Node | None:
    """The exact side of `a \\approx b`: a, or b if a is only a name; None for other texts."""
    parts = latex.split_outside_brackets(s, _APPROX)[0]
    if len(parts) == 1:
        return None
    first, *rest = [_read(p, depth) for p in parts[:2] if p.strip()] or [nodes.Raw("")]
    return rest[0] if rest and relations.name_of(first) else first


def _signs(s: str, depth: int) -> Node | None:
    """The list of a + b and a - b for `a \\pm b`; None for a text without such a sign."""
    if "\\pm" not in s and "\\mp" not in s or _SIGNS_IN_SET.search(s):
        return None
    both = [
        re.sub(r"\\pm(?![A-Za-z])", up, re.sub(r"\\mp(?![A-Za-z])", down, s))
        for up, down in ("+-", "-+")
    ]
    if "\\pm" in both[0] or "\\mp" in both[0]:
        return None
    return nodes.Collection(s, "list", nodes.open_lists([_read(p, depth) for p in both]))


def _relation(s: str, depth: int) -> Node | None:
    parts, operators = latex.split_outside_brackets(s, _OPERATOR)
    if not operators:
        return None
    pieces = latex.split_outside_brackets(s, _CUP)[0]
    if len(pieces) > 1 and all(map(_OPERATOR.search, pieces)):  # x < 1 \\cup x > 2
        return _joined(s, nodes.open_lists([_read(p, depth) for p in pieces]), "or")
    ops = [_OPERATORS.get(op, op) for op in operators]
    sides = [_read(p, depth) for p in parts]
    if all(op in (">", ">=") for op in ops):
        ops, sides = [_TURNED[op] for op in ops[::-1]], sides[::-1]
    if set(ops) == {"="} and not all(isinstance(n, nodes.Sequence) for n in sides):
        sides = [_list_as_name(part, n) for part, n in zip(parts, sides, strict=True)]
    values = sides[-1]
    if ops[-1] == "=" and isinstance(values, nodes.Collection) and values.kind == "list":
        equations = [nodes.Relation(s, (*sides[:-1], v), tuple(ops)) for v in values.items]
        return nodes.Collection(s, "list", tuple(equations))
    return nodes.Relation(s, tuple(sides), tuple(ops))


def _list_as_name(part: str, node: Node) -> Node:
    """The name C(8, 3) or P(A, B) if the side `part` of an equation is one; else its node."""
    is_named = isinstance(node, nodes.Sequence) and _NAMED.fullmatch(part.strip())
    return nodes.Raw(part.strip()) if is_named and part.strip()[0].isupper() else node


def _union(s: str, depth: int) -> Node | None:
    parts, kind = latex.split_outside_brackets(s, _CUP)[0], "union"
    if len(parts) == 1:
        parts, kind = latex.split_outside_brackets(s, _CAP)[0], "intersection"
    if len(parts) == 1 or not all(p.strip() for p in parts):
        return None
    members = [_read(p, depth) for p in parts]
    are_sets = all(isinstance(n, nodes.Sequence | nodes.Collection) for n in members)
    if kind == "intersection" and not are_sets:
        return None
    sets = [n for n in members if isinstance(n, nodes.Collection) and n.kind == "set"]
    if len(sets) == len(members) and kind == "union":
        return nodes.Collection(s, "set", tuple(item for n in sets for item in n.items))
    return nodes.Collection(s, kind, tuple(members))


def _without(s: str, depth: int) -> Node | None:
    """The difference of two sets, such as R \\ {0}; None for other texts."""
    parts = latex.split_outside_brackets(s, _WITHOUT)[0]
    if len(parts) != 2 or not all(p.strip() for p in parts):
        return None
    return nodes.Collection(s, "difference", tuple(_read(p, depth) for p in parts))


def _bracketed(s: str, depth: int) -> Node | None:
    named = _NAMED.fullmatch(s)
    if named and latex.split_outside_brackets(named["inner"], COMMA)[1]:  # A(3, 4), (3, 4) cm
        if not words.changes_meaning(named["after"] or ""):
            s = named["body"]
    if s[0] not in "([" + SET_OPEN or s[-1] not in ")]" + SET_CLOSE:
        return None
    if _closing(s) != len(s) - 1 or (s[0] == SET_OPEN) != (s[-1] == SET_CLOSE):
        return None
    inner = s[1:-1]
    if s[0] == SET_OPEN:
        built = re.split(r"\||:", inner, maxsplit=1)
        if len(built) == 2 and not latex.split_outside_brackets(built[0], COMMA)[1]:
            return _read(built[1], depth)
        items = nodes.open_lists([_read(inner, depth)]) if inner.strip() else ()
        return nodes.Collection(s, "set", items)
    parts, separators = latex.split_outside_brackets(inner, COMMA)
    if len(parts) > MAX_ITEMS:
        return None
    if len(parts) > 1 and not {AND, OR} & set(separators):
        return nodes.Sequence(s, s[0], tuple(_read(p, depth) for p in parts), s[-1])
    if re.fullmatch(r"\(\s*[A-Za-z]\s*\)", s):
        return None  # a multiple choice answer
    return _read(inner, depth) if s[0] + s[-1] in ("()", "[]") else nodes.Raw(s)


def _closing(s: str) -> int:
    depth = 0
    for i, c in enumerate(s):
        depth += c in "([{" + SET_OPEN
        depth -= c in ")]}" + SET_CLOSE
        if depth == 0:
            return i
    return -1


def _leaf(s: str, depth: int) -> Node:
    if s == "\\emptyset":
        return nodes.Collection(s, "set", ())
    if based := numbers.read_based(s):
        return nodes.Based(s, *based)
    if re.fullmatch(rf"{OPEN}[^{CLOSE}]*{CLOSE}", s):
        return _said(s)
    if measure := measures.compound_measure(s):
        return measure
    parts = latex.split_outside_brackets(s, _COLON)[0]
    unit = _BRACED_UNIT.fullmatch(s) or _with_unit(s)
    if unit and words.JUDGES_LAST.search(unit["unit"].casefold()):
        return nodes.Raw(s)
    if len(parts) > 1 and depth < MAX_DEPTH:
        bare, after = (unit["body"], unit["unit"]) if unit else (s, "")
        members = [_read(p, depth) for p in latex.split_outside_brackets(bare, _COLON)[0]]
        formulas = tuple(n for n in members if isinstance(n, nodes.Formula))
        return nodes.Ratio(s, formulas, after) if len(formulas) == len(members) else nodes.Raw(s)
    for prefix, body, after in _splits(s, unit):
        if date := measures.read_date(body):
            return date
        try:
            tree = parse_formula(body)
            if units.unit_key(after) == "degree":
                return nodes.Formula(s, Marked("deg", tree), prefix)
            return nodes.Formula(s, tree, prefix, after)
        except Malformed:
            continue
    return nodes.Raw(s)


def _said(s: str) -> Node:
    """The node that words stand for: a number, a named set of numbers, or a text."""
    count = quantities.spoken_number(s.strip(OPEN + CLOSE))
    if count is not None:
        return nodes.Formula(s, number(count))
    key = words.text_key(s)
    if key in words.EMPTY:
        return nodes.Collection(s, "set", ())
    return nodes.Formula(s, REALS) if key in words.REALS else nodes.Text(s)


def _with_unit(s: str, start: int = 0) -> re.Match[str] | None:
    """The match of `_UNIT` from `start`; None for a quotient by a word, such as `10/width`."""
    match = _UNIT.fullmatch(s, start)
    is_quotient = match and match["unit"][0] == "/" and not units.unit_key(match["unit"])
    return None if is_quotient else match


def _splits(s: str, unit: re.Match[str] | None) -> list[tuple[str, str, str]]:
    """Ways to split a text into (words before, formula, words after), the most likely first.

    `unit` is a match of the whole text, whose group `body` is the formula and whose group `unit`
    is the words after it; None if no words follow the formula.
    """
    before = _PREFIX.match(s)
    if words.changes_meaning(s) or before and words.CHANGES_NEXT.search(before[1].casefold()):
        return [("", s, "")]
    splits = [("", unit["body"], unit["unit"])] if unit else []
    if before:
        both = _with_unit(s, before.end())
        if both and words.JUDGES_LAST.search(both["unit"].casefold()):
            return [("", s, "")]
        body, after = both.group("body", "unit") if both else (s[before.end() :], "")
        splits.append((before[1], body, after))
    splits.append(("", s, ""))
    return [(prefix, _MIXED.sub(r"\1(\2+\3/\4)", body), after) for prefix, body, after in splits]
