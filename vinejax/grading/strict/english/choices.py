"""Reads multiple-choice answers: a letter, with or without the wording of the choice."""

import re

from vinejax.grading.strict.marks import CLOSE, OPEN, SEPARATORS

_ALONE = re.compile(rf"[\s{{{OPEN}]*(?:\(([A-Za-z])\)|([A-Z])[.:)]?|([a-z]))[\s}}{CLOSE}]*")
_LABEL = re.compile(
    rf"(?s)[\s{{{OPEN}]*(?:\(([A-Za-z])\):?|([A-HJ])(?:[.:)](?=[\s}}{CLOSE}])|[\s}}{CLOSE}]*\s-+"
    rf"(?=[\s{OPEN}]*(?:A[\s{OPEN}]+)?[{OPEN}a-z][a-z]+[^a-z]*)))"
    rf"(?P<gap>[\s}}{CLOSE}]*)(?P<said>.*)"
)
# If the answer continues like this, the letter is part of a formula or one choice of several.
_GOES_ON = re.compile(
    rf"[+*/^_=<>!|'%:.){SEPARATORS}]|\\(?:cdot|times|cup|cap|setminus|in|le|ge)\b"
)
_ANOTHER = re.compile(rf"(?<![A-Za-z\\])(?!A[\s{OPEN}]+[a-z])[A-HJ](?![A-Za-z(_^'])")
_LABELLED = re.compile(r"\([A-HJ]\)|(?<![A-Za-z\\])[A-HJ]\s?\)")
# A wording in words may name other letters, as 'all of A and B' and 'vitamin D' do.
_WORDING = re.compile(rf"(?:A\s*)?{OPEN}\s*(?P<first>[A-Za-z'-]+)")
_HEDGES = set("or and no not then maybe perhaps possibly either rather instead actually is".split())
# 'The correct option is B', 'B is correct'
_GAP = rf"[\s{{}}{OPEN}{CLOSE}]*"
_NAMED = re.compile(
    rf"(?i){_GAP}(?:the\s+)?(?:(?:correct|right)\s+)?(?:option|choice|answer)\b(?:\s+is\b)?:?{_GAP}"
    rf"(?=\(?[a-z]\b)"
)
_PRAISED = re.compile(
    rf"(?i)(?<=[a-z)]){_GAP}is\s+(?:the\s+)?(?:correct|right)(?:\s+(?:option|choice|answer))?{_GAP}\Z"
)
_DENIED = re.compile(
    r"(?i)\b(?:is|are|was)\s+(?:not|false)\b|n't\b|\b(?:wrong|incorrect)\b|\bnot\b(?!\s+[A-Za-z])"
)


def split_choice(source: str) -> tuple[str, str] | None:
    """The letter and the wording (may be '') of `(C)`, `C`, `(C) blue` or `C. 12`; else None.

    An answer that names a second letter or denies the first is no choice.
    """
    named = _NAMED.match(source)
    source = _PRAISED.sub("", source[named.end() :] if named else source)
    alone = _ALONE.fullmatch(source)
    if alone:
        return next(filter(None, alone.groups())), ""
    match = _LABEL.fullmatch(source)
    if not match:
        return None
    letter, wording = match.group(1) or match.group(2), match["said"].strip()
    if wording.count(CLOSE) > wording.count(OPEN):  # \text{(C) blue}
        wording = OPEN + wording
    if letter not in "ABCDEFGHJ" and not wording.startswith(OPEN):
        return None  # (x) 2 is a product
    minus = wording.startswith("-") and not re.match(r"\s-[\d.\\(]", match["gap"][-1:] + wording)
    if minus or _GOES_ON.match(wording) or _DENIED.search(wording) or _LABELLED.search(wording):
        return None
    words = _WORDING.match(wording)
    in_words = words and words["first"].lower() not in _HEDGES
    return None if not in_words and _ANOTHER.search(wording) else (letter, wording)
