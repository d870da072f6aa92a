r"""Reads the labels of the parts of an answer: `(a) 3, (b) 5`, `Part (i): \boxed{3}`.

Labels count only if they are in order, as (a) and (b). A label that stands alone means nothing.
"""

import re
from typing import NamedTuple

from vinejax.grading.strict.marks import AND, CLOSE, OPEN

_ROMAN = ["i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x"]
_ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"]
_MARK = r"[a-h]|[ivx]{1,4}|[1-9]"
# Before a box: '(a)', 'b)', 'Part (ii):', 'Part 2:', 'Second part:', perhaps bold or in \text.
_BEFORE_BOX = re.compile(
    rf"(?<![\w(\\])(?:(?i:(?P<word>part|question|subpart|case)s?\s*)\(?(?P<named>{_MARK}|[A-H])\b\)?"
    rf"|\(?(?P<mark>{_MARK})\)|(?P<lone>[a-h])(?=\s*:)"
    rf"|(?i:(?P<ordinal>{'|'.join(_ORDINALS)})\s+(?:part|answer|question|case|value)\b))(?:\*\*)?\s*[:.]?"
)
_BARE = re.compile(r"(?:[\s.:=*${]|\\[(\[,; ]|\\(?:text|mbox|mathrm|quad)(?![A-Za-z]))*")
_BETWEEN = re.compile(
    r"(?:[\s.,;$*}#-]|\\[)\],; ]|\\q?quad(?![A-Za-z])|\\text\s*\{|\b(?:and|for|in)\b)*"
)
_CONCLUDES = re.compile(
    r"(?i)\b(?:then|so|hence|thus|therefore|finally|using|substitut\w+)\b|\\boxed"
)
# After a box: 'for part (a) and', 'papers and'
_NOTED = re.compile(
    rf"\s*(?:\\text\s*\{{)?\s*(?:(?:for|in)\s+(?:parts?\s*)?\(?(?:{_MARK})\)?\s*(?:,\s*and\b|,|;|and\b)"
    r"|[a-z]{2,20}\s+and\b)[\s}$]*"
)
_IN_ANSWER = re.compile(
    rf"(?:\A|(?<=[\s,;{AND}{OPEN}])){OPEN}?\s*(?:(?:[Pp]art\s*)?\(?(?P<mark>{_MARK})\))[:.]?\s*{CLOSE}?"
    rf"[:.]?(?=[\s{OPEN}])"
)
_IN_BRACKETS = re.compile(r"\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}")
MAX_LABELLED = 120  # characters between a label and its box
MAX_PARTS = 20


class Label(NamedTuple):
    kind: str  # the first mark of its series: 'a', 'i' or '1'
    number: int  # place in the series, from 0
    start: int
    end: int
    is_named: bool  # whether a word such as 'Part' belongs to it


def _label(match: re.Match[str]) -> Label:
    found = match.groupdict()
    at = (match.start(), match.end())
    if ordinal := found.get("ordinal"):
        return Label("1", _ORDINALS.index(ordinal.lower()), *at, True)
    mark = found["mark"] or found.get("lone") or found["named"].lower()
    if mark in _ROMAN:
        return Label("i", _ROMAN.index(mark), *at, bool(found.get("word")))
    if mark.isdigit():
        return Label("1", int(mark) - 1, *at, bool(found.get("word")))
    return Label("a", ord(mark[0]) - ord("a"), *at, bool(found.get("word")))


def joined_parts(before: str, between: str) -> Label | None:
    """The label of the first of two boxes if they are consecutive parts of one answer; else None.

    `before` is the text before the first box, and `between` the text between the two. Boxes with
    words behind them, as in '3 for part (a) and 5', get a label of kind '1'.
    """
    if _NOTED.fullmatch(between):
        return Label("1", 0, 0, 0, False)
    first = next(reversed([*_BEFORE_BOX.finditer(before)]), None)
    second = _BEFORE_BOX.search(between)
    if not first or not second:
        return None
    a, b = _label(first), _label(second)
    if a.kind != b.kind or a.number + 1 != b.number or not _BETWEEN.fullmatch(between[: b.start]):
        return None
    gaps = before[a.end :], between[b.end :]
    if a.kind == "1" and not a.is_named:  # 1. and 2. may be the steps of a solution
        return a if all(map(_BARE.fullmatch, gaps)) else None
    is_apart = any(len(gap) > MAX_LABELLED or _CONCLUDES.search(gap) for gap in gaps)
    return None if is_apart else a


def labelled(contents: list[str], first: list[Label]) -> str:
    """The contents of boxes that are parts, with the labels (a), (b) or (i), (ii) if they had such.

    With labels the order of the parts counts. Numbered parts get none, because a list of solutions
    is numbered, too, and neither do parts that are lists themselves. `first` has the label of each
    box but the last.
    """
    kind = first[0].kind
    has_lists = any("," in _IN_BRACKETS.sub("", content) for content in contents)
    if (
        kind == "1"
        or has_lists
        or [(x.kind, x.number) for x in first] != [(kind, i) for i in range(len(contents) - 1)]
    ):
        return ", ".join(contents)
    marks = _ROMAN if kind == "i" else "abcdefgh"
    return ", ".join(f"({mark}) {content}" for mark, content in zip(marks, contents, strict=False))


def split_parts(s: str) -> list[tuple[str, str]] | None:
    """The marks and contents of a cleaned answer such as `(a) 3, (b) 5`; None for other answers."""
    found = [*_IN_ANSWER.finditer(s)] if ")" in s else []
    if not 2 <= len(found) <= MAX_PARTS or found[0].start() > 0:
        return None
    labels = [*map(_label, found)]
    if any(x.kind != labels[0].kind or x.number != i for i, x in enumerate(labels)):
        return None
    ends = [*(x.start for x in labels[1:]), len(s)]
    contents = [s[x.end : end].strip(f" ,;.{AND}") for x, end in zip(labels, ends, strict=True)]
    contents = [OPEN + c if c.count(CLOSE) > c.count(OPEN) else c for c in contents]
    marks = [f"part {x.kind}{x.number}" for x in labels]
    return [*zip(marks, contents, strict=True)] if all(contents) else None
