"""Finds the answers that a text denies: `not 12`, `rather than 12`, `12 is wrong`, `rules out C`.

Every pattern begins with a word or a bounded value, so that a search takes linear time.
"""

import re

DENIED = "\ue00f"  # stands for each character of a denied answer; no cleaned text has it

# No power and no product follows it, but the end of bold type may.
_NUMBER = (
    r"(?<![\w.,/])[-−+]?[$€£]?\d{1,30}(?:[.,/:]\d{1,30}){0,9}%?"
    r"(?![\w^\\{(-]|\*(?!\*(?![\w(])))"
)
_FORMULA = r"(?<!\\)\$(?:[^$\n\\]|\\.){1,120}\$|\\\([^\n]{1,120}?\\\)"
_LETTER = r"\([A-Ja-j]\)|(?<![\w'])[A-J](?![\w'])"
_VALUE = rf"(?:\*\*)?(?:{_FORMULA}|{_NUMBER}|{_LETTER}|\b(?:yes|no|true|false)\b)(?:\*\*)?"
_NEGATED = (
    r"(?:\b(?:is|was|are|were|do|does|did|ca|could|wo|would|should)n['’]t|(?<!\\)\bnot|\bcannot"
    r"|\bnever)"
)
_CONTRAST = r"\b(?:rather than|instead of|as opposed to)"
_EXCLUDES = r"(?:rul(?:es?|ed|ing) out|eliminat|exclud|reject|discard|dismiss)(?:[a-z]{0,3})"
_BEFORE = (
    rf"(?i:{_NEGATED}|{_CONTRAST}|\bunlike"
    rf"|\bneither|\bnor|\b{_EXCLUDES})"
    r"(?:\*\*)?\s+(?i:(?:be|equal(?: to)?|just|option|choice|answer|the answer|the value)\s+){0,2}"
    r"(?:[A-Za-z]\s*=\s*)?"
)
_WRONG = (
    r"(?i:wrong|incorrect|false|invalid|impossible|extraneous|excluded|rejected|eliminated"
    r"|ruled out|too (?:large|big|small|high|low|many|few|much|little|long|short)"
    r"|not (?:right|correct|possible|valid|it|allowed|(?:the|an?) (?:answer|option|solution)))\b"
)
_AFTER = (
    rf"(?i:(?:is|was|are|were|would be|seems|looks)\s+){_WRONG}"
    r"|(?i:fails?|failed|(?:does\s*n[o'’]t|do not) work)\b"
)
_DENIED_NEXT = re.compile(
    rf"(?:[,;(]\s*)?(?i:\b(?:and|but)\s+)?{_BEFORE}{_VALUE}(?:\s*(?:,\s*)?(?:n?or)\s+{_VALUE}){{0,9}}"
    r"(?:\s*,?\s*(?i:but)(?i:\s+(?:rather|instead|in fact))?\b)?"
)
_DENIED_LIST = re.compile(
    rf"(?i:\b{_EXCLUDES})\s+(?i:(?:options?|choices?|answers?)\s+)?{_VALUE}"
    rf"(?:\s*(?:,\s*(?:and|or)?|and\b|or\b)\s*{_VALUE}){{0,9}}"
)
# Everything behind 'rather than' up to the end of the clause; in 'Rather than 6,' up to the comma
_CONTRASTED = re.compile(
    rf"(?i)(?:[,(]\s*)?{_CONTRAST}\s+(?:(?![.!?;](?:\s|\Z)|,\s+[a-z]|\s(?:to|we|which|that|would"
    r"|so|because|since|as|when|gives?|gets?|makes?|yields?|is|are|was|has)\s).){1,200}"
)
_CONTRASTED_FIRST = re.compile(
    rf"(?im)(?:^|(?<=[.!?]\s)){_CONTRAST}\s+(?:\([^()\n]{{0,60}}\)|[^,(\n]){{1,100}},"
)
_DENIED_LAST = re.compile(rf"(?i:\b(?:option|choice|answer)\s+)?{_VALUE}\s+(?:{_AFTER})")
_HINT = re.compile(
    rf"(?i){_NEGATED}|{_CONTRAST}|unlike|neither|{_EXCLUDES}|{_WRONG}|fail"
    r"|n[o'’]t work"
)
_BOX_DENIED_BEFORE = re.compile(rf"{_BEFORE}(?:\\[(\[]|[\s$*])*\Z")
_BOX_DENIED_AFTER = re.compile(rf"(?:\\[)\]]|[\s$*])*(?:{_AFTER})")
MAX_BEFORE = 60  # characters before a box that may deny it


def mask_denied(text: str) -> str:
    """The text, of the same length, with DENIED for each character of a denied answer.

    The words that deny the answer are masked as well. Boxes are not masked (`denies_box`).
    """
    if not _HINT.search(text):
        return text
    for pattern in (_CONTRASTED_FIRST, _CONTRASTED, _DENIED_LIST, _DENIED_NEXT, _DENIED_LAST):
        text = pattern.sub(lambda match: DENIED * len(match.group()), text)
    return text


def denies_box(text: str, start: int, end: int) -> bool:
    """Whether the words before or after the box `text[start:end]` deny it."""
    before, after = text[max(0, start - MAX_BEFORE) : start], text[end : end + MAX_BEFORE]
    return bool(_BOX_DENIED_BEFORE.search(before) or _BOX_DENIED_AFTER.match(after))
