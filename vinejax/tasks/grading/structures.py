"""What an answer is made of: numbers and formulas, tuples, sets, lists, matrices, relations, text.

`read` never raises: what it does not understand is a `Raw`, equal only to the same string.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from vinejax.tasks.grading import latex, numbers, words
from vinejax.tasks.grading.expression import Tree, parse
from vinejax.tasks.grading.latex import CLOSE, OPEN, ROW, SET_CLOSE, SET_OPEN
from vinejax.tasks.grading.lexer import Malformed

MAX_DEPTH = 12
MAX_ITEMS = 3000


@dataclass(frozen=True)
class Raw:
    """Not understood."""

    source: str


@dataclass(frozen=True)
class Text:
    """Words."""

    source: str


@dataclass(frozen=True)
class Formula:
    """A number or an expression, with the words before and after it ('' without)."""

    source: str
    tree: Tree
    prefix: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Based:
    """A number with the base it is written in."""

    source: str
    digits: str
    base: int


@dataclass(frozen=True)
class Ratio:
    """`a:b`, also a time of day."""

    source: str
    parts: tuple["Node", ...]
    unit: str = ""


@dataclass(frozen=True)
class Sequence:
    """A tuple, point, vector or interval: ordered, with its brackets."""

    source: str
    opening: str
    items: tuple["Node", ...]
    closing: str


@dataclass(frozen=True)
class Collection:
    """A set in braces, a list with bare commas, or a union of intervals: kind set, list, union."""

    source: str
    kind: str
    items: tuple["Node", ...]


@dataclass(frozen=True)
class Matrix:
    """Rows of nodes; `bars` for a determinant."""

    source: str
    rows: tuple[tuple["Node", ...], ...]
    bars: bool = False


@dataclass(frozen=True)
class Relation:
    """A chain `side op side op ..`; ops are `=`, `<`, `<=`, `!=`, `in`: `a > b` is `b < a`."""

    source: str
    sides: tuple["Node", ...]
    ops: tuple[str, ...]


Node = Raw | Text | Formula | Based | Ratio | Sequence | Collection | Matrix | Relation

_COMMA = re.compile(r"[,;]")
_CUP = re.compile(r"\\cup(?![A-Za-z])")
_COLON = re.compile(r":(?!=)")
_APPROX = re.compile(r"\\approx(?![A-Za-z])")
_OPERATOR = re.compile(r"\\(?:le|ge|ne|in|equiv)(?![A-Za-z])|:=|<=|>=|!=|==|[=<>]")
_OPERATORS = {"\\le": "<=", "\\ge": ">=", "\\ne": "!=", "\\in": "in"}
_OPERATORS |= {"\\equiv": "=", ":=": "=", "==": "="}
_TURNED = {">": "<", ">=": "<="}
_MATRIX = re.compile(
    r"(.*?)[(\[]?\s*(\|?)\s*\\begin\s*\{([pbvVB]?(?:small)?matrix|array|cases)\*?\}\s*(.*)\\end\s*\{\3\*?\}\s*\|?\s*[)\]]?",
    re.DOTALL,
)
_ARRAY_SPEC = re.compile(r"^\s*(?:\[\w\])?\{[lcr|@{}\s]*\}")
_ROW, _CELL = re.compile(ROW), re.compile("&")
_UNIT = re.compile(
    rf"(?P<body>[^{OPEN}{CLOSE}]*[^{OPEN}{CLOSE}\s])\s*"
    rf"(?P<unit>{OPEN}[^{CLOSE}]*{CLOSE}"
    rf"(?:{OPEN}[^{CLOSE}]*{CLOSE}|\^\{{?-?\d\}}?|[\s/{{}}.()]|\\cdot)*)"
)
_BRACED_UNIT = re.compile(rf"(?P<body>.*[^_^{CLOSE}])\{{(?P<unit>{OPEN}[^{CLOSE}]*{CLOSE})\}}")
_PREFIX = re.compile(rf"{OPEN}([^{CLOSE}]*){CLOSE}\s*:?\s*([^{OPEN}{CLOSE}]+)")


def read(text: str, thousands: bool = True) -> Node:
    """The structure of a cleaned answer; `thousands`: whether 1,000 is one number."""
    return _read(numbers.join_thousands(text) if thousands else text, 0)


def _read(s: str, depth: int) -> Node:
    s = _unwrap(s)
    if not s or depth > MAX_DEPTH:
        return Raw(s)
    for reader in (_list, _approximate, _signs, _relation, _union, _bracketed, _matrix):
        node = reader(s, depth + 1)
        if node is not None:
            return node
    return _leaf(s, depth + 1)


def _unwrap(s: str) -> str:
    for _ in range(MAX_DEPTH):
        s = s.strip()
        if not (s.startswith("{") and latex.group_end(s, 0) == len(s) - 1):
            break
        s = s[1:-1]
    return s


def flatten(nodes: list[Node]) -> tuple[Node, ...]:
    """Lists inside lists opened up."""
    flat: list[Node] = []
    for node in nodes:
        if isinstance(node, Collection) and node.kind == "list":
            flat.extend(node.items)
        else:
            flat.append(node)
    return tuple(flat)


def _list(s: str, depth: int) -> Node | None:
    parts = latex.split_top(s, _COMMA)[0]
    if len(parts) < 2 or len(parts) > MAX_ITEMS:
        return None
    parts = [p for p in parts if p.strip()]
    return Collection(s, "list", flatten([_read(p, depth) for p in parts])) if parts else None


def _approximate(s: str, depth: int) -> Node | None:
    """What is exact of `a \\approx b`: the first part that says something."""
    parts = latex.split_top(s, _APPROX)[0]
    return None if len(parts) == 1 else _read(next((p for p in parts if p.strip()), ""), depth)


def _signs(s: str, depth: int) -> Node | None:
    """`a \\pm b` is the two values of it."""
    if "\\pm" not in s and "\\mp" not in s:
        return None
    both = [
        re.sub(r"\\pm(?![A-Za-z])", up, re.sub(r"\\mp(?![A-Za-z])", down, s))
        for up, down in ("+-", "-+")
    ]
    if "\\pm" in both[0] or "\\mp" in both[0]:
        return None
    return Collection(s, "list", flatten([_read(p, depth) for p in both]))


def _relation(s: str, depth: int) -> Node | None:
    parts, found = latex.split_top(s, _OPERATOR)
    if not found:
        return None
    ops = [_OPERATORS.get(op, op) for op in found]
    sides = [_read(p, depth) for p in parts]
    if all(op in (">", ">=") for op in ops):
        ops, sides = [_TURNED[op] for op in ops[::-1]], sides[::-1]
    values = sides[-1]
    if ops[-1] == "=" and isinstance(values, Collection) and values.kind == "list":
        each = [Relation(s, (*sides[:-1], v), tuple(ops)) for v in values.items]
        return Collection(s, "list", tuple(each))
    return Relation(s, tuple(sides), tuple(ops))


def _union(s: str, depth: int) -> Node | None:
    parts = latex.split_top(s, _CUP)[0]
    if len(parts) == 1 or not all(p.strip() for p in parts):
        return None
    nodes = [_read(p, depth) for p in parts]
    sets = [n for n in nodes if isinstance(n, Collection) and n.kind == "set"]
    if len(sets) == len(nodes):
        return Collection(s, "set", tuple(item for n in sets for item in n.items))
    return Collection(s, "union", tuple(nodes))


def _bracketed(s: str, depth: int) -> Node | None:
    if s[0] not in "([" + SET_OPEN or s[-1] not in ")]" + SET_CLOSE:
        return None
    if _closing(s) != len(s) - 1 or (s[0] == SET_OPEN) != (s[-1] == SET_CLOSE):
        return None
    inner = s[1:-1]
    if s[0] == SET_OPEN:
        built = re.split(r"\||:", inner, maxsplit=1)
        if len(built) == 2:  # {x | x > 2} says x > 2
            return _read(built[1], depth)
        items = flatten([_read(inner, depth)]) if inner.strip() else ()
        return Collection(s, "set", items)
    parts = latex.split_top(inner, _COMMA)[0]
    if len(parts) > MAX_ITEMS:
        return None
    if len(parts) > 1:
        return Sequence(s, s[0], tuple(_read(p, depth) for p in parts), s[-1])
    if re.fullmatch(r"\(\s*[A-Za-z]\s*\)", s):
        return None  # a choice
    return _read(inner, depth) if s[0] + s[-1] in ("()", "[]") else Raw(s)


def _closing(s: str) -> int:
    depth = 0
    for i, c in enumerate(s):
        depth += c in "([{" + SET_OPEN
        depth -= c in ")]}" + SET_CLOSE
        if depth == 0:
            return i
    return -1


def _matrix(s: str, depth: int) -> Node | None:
    match = _MATRIX.fullmatch(s)
    if not match:
        return None
    factor, bar, kind, body = match.groups()
    if "\\begin" in factor + body:
        return None
    body = _ARRAY_SPEC.sub("", body, count=1) if kind == "array" else body
    rows = [r for r in latex.split_top(body, _ROW)[0] if r.strip()]
    cells = [[c.strip() for c in latex.split_top(r, _CELL)[0]] for r in rows]
    if sum(map(len, cells)) > MAX_ITEMS:
        return None
    if kind == "cases":
        return Collection(s, "list", flatten([_read(" ".join(c), depth) for c in cells]))
    if factor.strip():
        cells = [[f"({factor})*({c})" for c in row] for row in cells]
    grid = tuple(tuple(_read(c, depth) for c in row) for row in cells)
    return Matrix(s, grid, bars=bool(bar) or kind[0] in "vV")


def _leaf(s: str, depth: int) -> Node:
    if s == "\\emptyset":
        return Collection(s, "set", ())
    based = numbers.based(s)
    if based:
        return Based(s, *based)
    if re.fullmatch(rf"{OPEN}[^{CLOSE}]*{CLOSE}", s):
        count = words.number(s)
        return Text(s) if count is None else Formula(s, ("num", Fraction(count), str(count)))
    parts = latex.split_top(s, _COLON)[0]
    unit = _BRACED_UNIT.fullmatch(s) or _UNIT.fullmatch(s)
    if len(parts) > 1 and depth < MAX_DEPTH:
        bare, after = (unit["body"], unit["unit"]) if unit else (s, "")
        nodes = tuple(_read(p, depth) for p in latex.split_top(bare, _COLON)[0])
        return Ratio(s, nodes, after) if all(isinstance(n, Formula) for n in nodes) else Raw(s)
    for prefix, body, after in _splits(s, unit):
        try:
            return Formula(s, parse(body), prefix, after)
        except Malformed:
            continue
    return Raw(s)


def _splits(s: str, unit: re.Match[str] | None) -> list[tuple[str, str, str]]:
    """(words before, formula, words after), the most likely first."""
    if words.changes_meaning(s):
        return [("", s, "")]
    found = [("", unit["body"], unit["unit"])] if unit else []
    before = _PREFIX.fullmatch(s)
    found += [(before[1], before[2], "")] if before else []
    mixed = re.fullmatch(r"(-?)\s*(\d+)[ -](\d+)\s*/\s*(\d+)(.*)", s)
    if mixed:
        sign, whole, top, bottom, rest = mixed.groups()
        found.append(("", f"{sign}({whole}+{top}/{bottom}){rest}", ""))
    return [*found, ("", s, "")]
