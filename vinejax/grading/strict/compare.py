"""The strict comparison of two answers: the verdict of a mathematician.

Values are exact: 0.333 is not a third, 3.14 is not pi. Only a decimal of ten or more significant
digits is taken for the number that it was printed from. Conventions: a percentage equals its
number with or without the sign; a unit, a degree mark or a name (`x =`) that only one side has is
ignored, but two units or names must agree; the order counts in tuples, not in lists and sets; the
brackets of an interval count; a number in a base equals only the same digits, in the same base or
without a base.

Nothing is ever run as code: answers are read by the parsers of this package and by nothing else.
`equal_strict` limits every size before it computes; the worker pool also limits its time.
"""

import re

from vinejax.grading.strict import latex, marks, numbers
from vinejax.grading.strict.english import choices, quantities

MAX_CHARACTERS = 20_000

_QUICK = re.compile(r"\\left|\\right|\\!|[\s$]|\.$")
_QUICK_SEPARATOR = re.compile(r"(?<=\d)(?:\{,\}|\\,)(?=\d{3}(?!\d))")
# Texts that are no number even without the gap: `$5$ $6$`, `1, 234`, `5\left6`, `2e - 1`.
_GAP = r"(?:[\s$]|\\left|\\right)+"
_APART = re.compile(rf"[\d,]{_GAP}[\d,eE]|[eE]{_GAP}[\d+-]")
# Numbers whose commas may separate thousands or list items. A group that begins with 0, as in
# `1,000`, is not ambiguous: no list item is written `000`.
_AMBIGUOUS = re.compile(r"[1-9]\d{0,2}(?:,[1-9]\d\d)+")
_BETWEEN_ITEMS = re.compile(rf",(?!\d{{3}}(?!\d))|[{marks.AND}{marks.OR}]")
_COMMA_DECIMAL = re.compile(r"-?(?:0,\d+|\d+,\d\d(?:\d\d+)?)")  # 1,5 is a list, 1,500 is not 1.5


def cheap_strict(prediction: str, gold: str) -> bool | None:
    """Whether two strings or plain numbers are equal; None for pairs that need a parser."""
    if not prediction.strip() or not gold.strip():
        return False
    if len(prediction) > MAX_CHARACTERS or len(gold) > MAX_CHARACTERS:
        return prediction.strip() == gold.strip()
    a, b = _quick(prediction), _quick(gold)
    if a == b and a:
        return True
    x, y = numbers.read_rational(a), numbers.read_rational(b)
    return None if x is None or y is None else numbers.same_number(x, y, a, b)


def _quick(text: str) -> str:
    """Drop dollar signs, `\\left`, `\\right`, spaces and separators of thousands.

    If a gap separates two numbers, only dollar signs around the text are dropped.
    """
    s = text.strip().strip("$").strip()
    if _APART.search(s):
        return s
    s = _QUICK_SEPARATOR.sub("", _QUICK.sub("", s))
    joined = numbers.join_thousands(s)
    return joined if joined.lstrip("+-").replace(".", "", 1).isdigit() else s


def _has_too_long_number(prediction: str, gold: str) -> bool:
    """Whether one side is a number too long to be read, and the other has none of its length.

    They are then unequal as texts. The patterns of the parsers take seconds for thousands of digits
    in a row, which a model that repeats itself writes.
    """
    sides = [_quick(prediction), _quick(gold)]
    is_long = [numbers.is_too_long(side) for side in sides]
    pairs = zip(sides, is_long, strict=True)
    return any(is_long) and all(long or len(side) <= numbers.MAX_DIGITS for side, long in pairs)


def equal_strict(prediction: str, gold: str) -> bool:
    """Whether two answers (bare, in dollar signs or in a box) are equal; never raises."""
    verdict = cheap_strict(prediction, gold)
    if verdict is not None:
        return verdict
    if _has_too_long_number(prediction, gold):
        return False
    # Imported here, because mpmath takes time to import and `cheap_strict` does not need it.
    from vinejax.grading.strict.answers import conditions, nodes, reader
    from vinejax.grading.strict.answers.ellipses import write_out_dots
    from vinejax.grading.strict.matching import same_answer

    def same(x: str, y: str, thousands: bool = True) -> bool:
        """Whether two cleaned answers are equal.

        In `y` a text such as `1,000` is always one number, and in `x` only with `thousands`.
        """
        sides = reader.read_answer(x, thousands), reader.read_answer(y)
        return same_answer(*map(write_out_dots, sides))

    a, b = latex.clean_answer(prediction), latex.clean_answer(gold)
    if not a or not b:
        return False
    if nodes.source_key(a) == nodes.source_key(b):
        return True
    try:
        if same(a, b):
            return True
        for x, y in ((a, b), (b, a)):
            if _COMMA_DECIMAL.fullmatch(x) and "," not in y:  # 0,5 against 1/2
                return same(x.replace(",", "."), y)
            if "," not in y and (decimal := numbers.from_european(x)):  # 1.234,56 against 1234.56
                return same(decimal, y)
            if numbers.SIGNED_POWER.fullmatch(x) and re.search(r"(?<![A-Za-z\\])e", y):  # Euler's
                return same(re.sub("[eE]", " e ", x), y)
            said = quantities.said_number(x)  # a hundred and five against 105
            if said is not None and not _BETWEEN_ITEMS.search(y):
                return same(str(said), y)
            if _AMBIGUOUS.fullmatch(x) and _BETWEEN_ITEMS.search(y):  # 100,200 against 100, 200
                return same(x, y, thousands=False)
        return conditions.same_but_for_conditions(a, b, same)
    except RecursionError:
        return False


def readable_strict(answer: str) -> bool:
    """Whether a data set's answer (bare, in dollar signs or in a box) can be read.

    True for words, a number, a formula, and a tuple, list, set, matrix or relation of these. False
    for an answer that could only be compared as a string, because it is empty or has unclosed
    brackets or unknown commands. Never raises, and takes bounded time.
    """
    if len(answer) > MAX_CHARACTERS:
        return False
    if numbers.read_rational(_quick(answer)) is not None:
        return True
    from vinejax.grading.strict.answers import reader

    cleaned = latex.clean_answer(answer)
    if choices.split_choice(cleaned):
        return True  # C) and the like
    if not cleaned or not latex.is_balanced(answer):
        return False
    try:
        return reader.is_understood(reader.read_answer(cleaned))
    except RecursionError:
        return False
