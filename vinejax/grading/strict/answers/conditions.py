"""Conditions behind an answer, which one side may leave out: `x^2, x > 0`, `2k for integers k`.

A condition restricts a variable of the answer, or gives a reason for it ('since x > 0'). Answers
have no condition if they are a set of numbers (`x > 5, x \\ne 7`), a value at a point ('5 when
x = 2') or the pieces of a function.
"""

import re
from collections.abc import Callable

from vinejax.grading.strict import latex
from vinejax.grading.strict.algebra.syntax_trees import variables
from vinejax.grading.strict.answers import nodes, reader, relations
from vinejax.grading.strict.answers.nodes import Node
from vinejax.grading.strict.marks import AND, CLOSE, OPEN

_RESTRICTION = r"(?:[<>]|\\(?:ne|in|le|ge)(?![A-Za-z]))"
_RESTRICTS = re.compile(_RESTRICTION)
_START = re.compile(
    rf"[\s,;]*\(?\s*{OPEN}\s*\(?(?P<word>for|where|when|if|with|since|because|as|provided|given"
    rf"|assuming|such that)\b|\s*\((?=[^()]*{_RESTRICTION}[^()]*\)$)"
)
_LEADING = re.compile(
    rf"\s*{OPEN}\s*(?P<word>(?i:for|where|when|if|with|since|because|as|given|assuming|provided))\b"
    rf"(?:\s+that\b)?"
)
_THEN = re.compile(rf"\A\s*(?:{OPEN}\s*(?:then|we have|it is)\s*{CLOSE}\s*:?)?\s*")
MAX_LEADING = 4  # commas within a leading condition
_OF_ALL = {"all", "any", "every", "each"}
_KNOWN = {*_OF_ALL, *"some that is are an a the real natural integer integers number".split()}
_KNOWN |= {"numbers", "value", "values", "arbitrary", "constant"}
_INTEGERS = re.compile(r"\\mathbb\{[ZN]\}|\binteger|\bnatural")
_EVERYWHERE = re.compile(r"\\in\s*\\mathbb\{[ZRQC]\}")
_INDICES = set("ijklmnpqrst")  # letters that one expects for an integer


def same_but_for_conditions(a: str, b: str, same: Callable[[str, str], bool]) -> bool:
    """Whether two cleaned answers are equal, apart from a condition that only one of them has.

    `same` compares the answers without their conditions. If neither answer has a condition, the
    result is False. A variable that stands for an integer may have different names in `a` and `b`.
    """
    x, y = _split(a), _split(b)
    if not x and not y:
        return False
    value, integers, restriction = x or (a, set(), "")
    other, others, restricted = y or (b, set(), "")
    free = [_free(reader.read_answer(side)) or set() for side in (value, other)]
    old, new = free[1] - free[0], free[0] - free[1]
    if len(old) == len(new) == 1 and old | new <= _INDICES and (old <= others or new <= integers):
        letter = re.compile(rf"(?<![A-Za-z\\]){min(old)}(?![A-Za-z])")
        other, restricted = letter.sub(min(new), other), letter.sub(min(new), restricted)
    at_odds = restriction and restricted and not same(restriction, restricted)
    return not at_odds and same(value, other)


def _split(s: str) -> tuple[str, set[str], str] | None:
    """Splits an answer with a condition into its value and the content of the condition.

    Returns (value, variables that stand for integers, other restrictions as text). None for an
    answer without a condition, and for the pieces of a function.
    """
    if leading := _split_leading(s):
        return leading
    starts = [*_START.finditer(s)] if OPEN in s or _RESTRICTS.search(s) else []
    if len(starts) == 1:
        start = starts[0]
        condition = OPEN * bool(start["word"]) + s[start.end() :]
        return _parts(s[: start.start()], condition, start["word"] or "")
    parts = [] if starts else latex.split_outside_brackets(s, reader.COMMA)[0]
    first = next((i for i, part in enumerate(parts) if i and _RESTRICTS.search(part)), len(parts))
    while 1 < first < len(parts) and re.fullmatch(r"\s*[A-Za-z]\s*", parts[first - 1]):
        first -= 1  # a, b \in \mathbb{Z}
    return _parts(",".join(parts[:first]), ",".join(parts[first:])) if first < len(parts) else None


def _split_leading(s: str) -> tuple[str, set[str], str] | None:
    """What `_split` returns, for a condition before the value: `for all x, f(x) = 2x`."""
    start = _LEADING.match(s)
    if not start:
        return None
    parts = latex.split_outside_brackets(s, reader.COMMA)[0]
    for i in reversed(range(1, min(len(parts), MAX_LEADING + 1))):
        condition, value = ",".join(parts[:i]), ",".join(parts[i:])
        value = _THEN.sub("", value, count=1)
        if found := _parts(value, OPEN + condition[start.end() :], start["word"].lower()):
            return found
    return None


def _parts(value: str, condition: str, word: str = "") -> tuple[str, set[str], str] | None:
    value, free = value.strip(), _free(reader.read_answer(value.strip()))
    said = " ".join(re.findall(rf"{OPEN}([^{CLOSE}]*)", condition)).lower()
    said = {word.strip("(),.") for word in said.split()} - {""}
    if free is None or not said <= _KNOWN:
        return None
    bare = re.sub(rf"{OPEN}[^{CLOSE}]*{CLOSE}?", " ", condition).replace(AND, ",")
    bare = bare.rstrip(" )") if bare.count(")") > bare.count("(") else bare
    names, restrictions = set(), []
    for part in filter(str.strip, latex.split_outside_brackets(bare, reader.COMMA)[0]):
        node = reader.read_answer(part)
        if isinstance(node, nodes.Relation) and set(node.ops) <= {"<", "<=", "!=", "in"}:
            names.update(*(_free(side) or () for side in node.sides))
            restrictions += [] if _EVERYWHERE.search(part) else [part]
        elif re.fullmatch(r"\s*[A-Za-z]\s*", part):
            names.add(part.strip())
        else:
            return None
    of_all = not restrictions and bool(_OF_ALL & said)
    if not (names & free or of_all or word in ("since", "because", "as")):
        return None
    return value, names if _INTEGERS.search(condition) else set(), ", ".join(restrictions)


def _free(node: Node) -> set[str] | None:
    """The variables in a node's value; None for a node without a value, such as an inequality."""
    match node:
        case nodes.Formula(tree=tree):
            return variables(tree)
        case nodes.Relation(ops=("=", *_)):
            named = relations.named_value(node)
            return _free(named[1]) if named else None
        case nodes.Sequence(items=items) | nodes.Collection(kind="list" | "set", items=items):
            found = [_free(item) for item in items]
            return None if None in found else set().union(*(names or () for names in found))
    return None
