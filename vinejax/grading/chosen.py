"""Finds the letter of a multiple choice in a text: 'option B is correct', 'Choice: B', a last 'B'.

Texts come with denied choices masked (`mask_denied` in `strict/english/denials.py`).
"""

import re
from typing import NamedTuple

from vinejax.grading.strict.english.choices import split_choice
from vinejax.grading.strict.english.denials import DENIED

_DRESS = r"[*_`$\"']{0,4}(?:\\(?:text|textbf|mathrm|mathbf)\{)?"
_LETTER = rf"{_DRESS}(?P<@>\([A-J]\)|[A-HJ])(?!\w|['’]\w)\}}?[*_`$\"']{{0,4}}"
_NOUN = r"(?i:option|choice|answer|statement|letter)"


def _letter(name: str) -> str:
    return _LETTER.replace("@", name)


# 'Option B is correct.', 'I choose B.', 'Correct choice: B', 'Only B works.'
_EXPLICIT = re.compile(
    rf"(?<![\w(])(?:{_NOUN}\s+)?{_letter('praised')}\s+is\s+(?:the\s+)?(?i:(?:only\s+)?(?:correct|best"
    r"|right)(?:\s+(?:answer|choice|option))?|(?:answer|choice|option))\b"
    rf"|{_NOUN}\s+{_letter('true')}\s+(?i:is|holds)\s*(?i:true|valid|the one)?(?=\W*\Z)"
    r"|(?:\bI(?:['’]\w+)?\s+(?:would\s+|will\s+)?)?(?<!not )(?<!n't )(?<!never )"
    r"\b(?i:choos\w+|pick\w*|select\w*|go(?:ing)? (?:with|for)"
    rf"|opt for|settle (?:on|for)|leaving|leaves)\s+(?:{_NOUN}\s+)?{_letter('taken')}"
    r"(?=\s*(?:\Z|\n|[.!;:](?:\s|\Z)|,(?!\s*\(?[A-J]\b)|(?i:because|since|as|here)\b))"
    r"|\b(?i:(?:which|that|this|it) is|match(?:es)?|corresponds? to|equals|gives)\s+(?i:the\s+)?"
    rf"{_NOUN}\s+{_letter('matched')}(?=\s*(?:\Z|\n|[.!;:](?:\s|\Z)|,(?!\s*\(?[A-J]\b)))"
    r"|(?im:(?:^|[\s*_#(])(?:correct|right|best|final|chosen|selected|my|our)?\s?(?:choice|option|pick"
    r"|selection|correct)[\s*_]*(?:[:：=]|\s[-–—](?=\s)))\s*"
    rf"{_letter('labelled')}(?=\s*(?:\Z|\n|[.!,;](?:\s|\Z)|[):]))"
    rf"|\b(?i:only)\s+(?:{_NOUN}\s+)?{_letter('only')}\s+(?i:works|holds|fits|remains|matches|survives"
    r"|satisf\w+|is\s+(?:left|possible|correct|valid|true))\b"
)
# Without the words and brackets of `_OF_CHOICES` these groups also match other problems' prose:
# 'a bus leaves A', 'only B works for 6 days', 'angle C is right'.
_PERHAPS = {"praised", "taken", "only"}
_OF_CHOICES = re.compile(rf"{_NOUN}|\([A-J]\)|(?i:correct)|\AI\b")
_VALUE = re.compile(r"[\d$\\]")
_REASON = re.compile(r"[\s,;(–—-]*(?::|(?i:because|since|as)\b)(?:(?![.!?](?:\s|\Z))[^\n])*")
# The last line: 'B', '**(B)**', 'B. The mass grows', or 'Therefore, B.' as its last sentence
_ALONE = re.compile(
    r"[\s*_`#$>\"'({\[]*(?:\\(?:text|textbf|mathrm|mathbf)\{)?(?P<letter>\(?[A-J]\)?)[\s*_`$)}\]\"'.!]*"
)
_CONCLUDED = re.compile(
    r"(?:.*?[.;:!?]\s+)?(?i:so|therefore|thus|hence|then|finally|consequently|in conclusion|we get"
    rf"|giving)?,?\s*(?i:(?:it|this|that)\s*(?:['’]s|is|must be|has to be|can only be)\s+)?"
    rf"(?i:the\s+)?(?:{_NOUN}\s+)?{_letter('letter')}[\s.!*]*"
)
_TO_BE = re.compile(
    rf"(?:\b(?:is|be)|['’]s)\s+{_letter('letter')}[\s.*]*\Z|(?P<bracketed>\([A-J]\))[\s.*]*\Z"
)
_LINE = re.compile(
    r"[\s>#]*[*_`]*\(?(?P<letter>[A-HJ])[*_`]*(?:\)|[.:](?=[\s*_])|\s+[-–—](?=\s))[*_`]*[:.]?[*_`]*\s+"
    r"(?P<wording>\S.*)"
)
MAX_LINE = 400  # characters of the last line


class Chosen(NamedTuple):
    answer: str
    start: int
    is_explicit: bool  # whether words or a line of its own say that the letter is the choice


def chosen(text: str, before: str = "") -> Chosen | None:
    """The choice that a text states last; None if it states none.

    Words that can also be prose, such as 'only B works', do not count if `before`, the answer that
    is stated before them, is no letter, nor if a value follows them other than in their reason.
    A last line with the wording of a choice is the answer as a whole. It counts only if no other
    line begins with a letter, because the lines could list the choices.
    """
    text = text.replace(DENIED, " ")
    found = None
    is_of_value = bool(before) and not _ALONE.fullmatch(before)
    last_value = max((value.start() for value in _VALUE.finditer(text)), default=-1)
    for match in _EXPLICIT.finditer(text):
        if match.lastgroup in _PERHAPS and not _OF_CHOICES.search(match.group()):
            reason = _REASON.match(text, match.end())
            if is_of_value or last_value >= (reason or match).end():
                continue
        found = Chosen(next(filter(None, match.groups())), match.start(), True)
    bare = text.rstrip()
    start = bare.rfind("\n") + 1
    line = bare[start:]
    if len(line) > MAX_LINE or found and found.start >= start:
        return found
    if alone := _ALONE.fullmatch(line):
        return Chosen(alone["letter"].strip("()"), start, start > 0)
    if concluded := _CONCLUDED.fullmatch(line) or _TO_BE.search(line):
        return Chosen(next(filter(None, concluded.groups())), start, False)
    if found:
        return found
    labelled = _LINE.fullmatch(line)
    if not labelled or any(map(_LINE.match, bare[:start].splitlines()[-20:])):
        return None
    whole = re.sub(r"[*_`]{2,}|`", "", line).strip()
    return Chosen(whole if split_choice(whole) else labelled["letter"], start, False)
