"""Drops the clauses that say more about an answer: '64, which is the total', '15, not 12'.

A clause that could change the answer stays, so that the answer is then wrong: '64, or maybe 65'.
"""

import re

from vinejax.grading.strict.english.denials import DENIED
from vinejax.grading.strict.english.quantities import spoken_number

# Where a clause may begin: a comma, bracket, dash or colon outside `$..$`.
_BREAK = re.compile(
    r"\$[^$]*\$|\s*(?P<open>\()|(?P<sign>\s*[,;，；]\s*|\s+[-–—]+\s+|:\s+(?=[a-z]))"
)
# A clause that gives a reason, a consequence or another form of the answer before it.
_REASON = re.compile(
    r"(?i)(?:which|who|this|these|it|he|she|they|we|i\.?e\b|that is|namely|meaning|making|giving"
    r"|leaving|so|hence|thus|therefore|then|because|since|as)\b"
)
# A clause that describes the answer: 'in lowest terms', 'counting both ends', 'on average'.
_DETAIL = re.compile(
    r"(?i)(?:in (?:total|all|lowest|simplest|reduced|exact|simplified|decimal|general|sum|short"
    r"|order|that|this|the|other|fact|both|each|its|their)|altogether|overall|respectively|exactly"
    r"|precisely|total|on (?:average|the whole)|to (?:be (?:exact|precise|sure)|the nearest)"
    r"|rounded|counting|including|considering|taking|using|after|before|by|from|out of|for a total"
    r"|as (?:required|desired|expected|claimed|shown)|(?:the|an?)\s+[a-z]{2,}"
    r"|where\s+\S+\s+(?:is|are|denotes?|represents?|stands for)\s+the)\b"
)
# 'for each child' is a detail, and 'for x > 0' a condition of the answer.
_CONDITION = re.compile(r"(?i)(?:for|with|where|given)\b")
_MATHEMATICS = re.compile(r"[\d$\\<>=^]|(?<![\w'])(?![aI]\b)[A-Za-z](?![\w'])")
_SAID_OF_IT = re.compile(  # 'and this is the maximum'
    r"(?i)and\s+(?P<subject>[^\s,;]+)\s+(?:[^\s,;]+\s+){0,2}?(?:is|are|was|has|have|must|can|fits|works|satisf\w+)\b"
)
# Clauses that take the answer back, or leave it open.
_REJECTS = re.compile(
    r"(?i)\A\W*(?:wait|sorry|actually|no|nope|or|oops|hmm+|correction|maybe|perhaps|possibly|but)\b"
    r"|\b(?:wrong|incorrect|invalid|impossible|rejected|except|unless|fails?)\b"
    r"|\btoo (?:large|small|big)\b"
    r"|\bnot (?:right|correct|the answer|possible|valid|sure|certain|quite|really)\b"
)
_QUALIFIES = re.compile(
    r"(?i)\b(?:at\s+(?:least|most)|minus|plus|negative|less|more|fewer|greater|not|times|per|base"
    r"|mod(?:ulo)?|hundreds?|thousands?|millions?|billions?|trillions?|dozens?|percent\w*"
    r"|hal(?:f|ves)|thirds?|quarters?|squared|cubed|factorial|or|if|when|whenever|provided|depending"
    r"|give or take|up to|over|under|above|below)\b|%"
)
_MATHEMATICAL = re.compile(r"[\d$\\=<>]|\A\W*[A-Ja-j]\W*\Z|\A\s*[(\[].*[)\]]\W*\Z")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_LONG_WORD = re.compile(r"[A-Za-z]{2,}")
MAX_WORDS = 4  # words of an answer with numbers: '5 apples and 3 pears'
_FEW_WORDS = re.compile(r"\s*(?:[^\s\d$\\]+\s*){1,3}\Z")
_LETTER = re.compile(r"\W*\(?[A-J]\)?\W*\Z")
_WORDS = re.compile(r"[a-z][a-z'’-]+(?:\s+[\w'’-]+)+", re.IGNORECASE)
_DENIED_WORDS = re.compile(r"(?i)(?:and\s+)?not\s+(?:[a-z'’-]+\s*){1,3}\Z")


def affirmed(sentence: str) -> str:
    """A sentence with an answer, without the clauses after the answer that only say more about it.

    Denied answers are masked by `DENIED`. A clause in brackets counts like one after a comma.
    """
    for mark in _BREAK.finditer(sentence):
        if not mark["open"] and not mark["sign"]:
            continue
        head, rest = sentence[: mark.start()], sentence[mark.end() :]
        if head.strip() and _says_more(head, rest.rstrip(" )") if mark["open"] else rest):
            return head
    head, denied, rest = sentence.partition(DENIED)
    head = re.sub(r"(?i)[\s,;]*(?:\b(?:and|or)\s*)?\Z", "", head)
    return head if denied and head and not _REJECTS.search(rest.strip(DENIED)) else sentence


def _says_more(head: str, rest: str) -> bool:
    """Whether `rest` only says more about the answer `head`."""
    words = len(_LONG_WORD.findall(_COMMAND.sub("", head)))
    is_value = bool(_MATHEMATICAL.search(head)) and words <= MAX_WORDS
    if not is_value and not _FEW_WORDS.match(head):
        return False
    if rest.startswith(DENIED):
        return not _REJECTS.search(rest.strip(DENIED + " "))
    if _REJECTS.search(rest):
        return False
    if _REASON.match(rest) or not is_value and _DENIED_WORDS.match(rest):
        return True
    if said := _SAID_OF_IT.match(rest):  # but not 'and 5 are prime' after '2, 3'
        return is_value and (not _MATHEMATICAL.search(said["subject"]) or said["subject"] in head)
    clause = re.split(r"[,;]", rest, maxsplit=1)[0]
    if not is_value or _QUALIFIES.search(clause):
        return False
    if _CONDITION.match(clause):
        return not _MATHEMATICS.search(clause)
    if _DETAIL.match(clause):
        return True
    if not _WORDS.match(clause) or spoken_number(clause.split()[0]) is not None:
        return False
    return bool(_LETTER.match(head)) or not re.search(r"[\d$\\]", clause)
