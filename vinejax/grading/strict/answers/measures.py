"""Reads and converts units, measures in two units (`6 feet 2 inches`), times of day and dates."""

import operator
import re
from fractions import Fraction

from vinejax.grading.strict import numbers
from vinejax.grading.strict.algebra.syntax_trees import (
    Number,
    Power,
    Product,
    Symbol,
    Tree,
    number,
    variables,
)
from vinejax.grading.strict.answers.nodes import Formula, Node, Ratio, Text
from vinejax.grading.strict.english import units, words
from vinejax.grading.strict.marks import AND, CLOSE, OPEN

# unit: (base unit, number of base units in it)
_SCALES = {
    unit: (base, Fraction(count))
    for unit, base, count in map(
        str.split,
        """m m 1; in in 1; ft in 12; yd in 36; mi in 63360; g g 1; tonne g 1000000; lb oz 16;
        oz oz 1; ton oz 32000; s s 1; min s 60; h s 3600; day s 86400; week s 604800; l l 1;
        gal teaspoon 768; quart teaspoon 192; pint teaspoon 96; cup teaspoon 48;
        tablespoon teaspoon 3; teaspoon teaspoon 1; hz hz 1; newton newton 1; joule joule 1;
        watt watt 1; volt volt 1; ampere ampere 1; pascal pascal 1; calorie calorie 1;
        dollar dollar 1; cent dollar 1/100""".split(";"),
    )
}
_SCALES |= {unit: (base, Fraction(10) ** power) for unit, (base, power) in units.MULTIPLES.items()}
_PART = re.compile(rf"\s*(?:[,{AND}]\s*)?(\d+(?:\.\d+)?|\d+/\d+)\s*({OPEN}[^{CLOSE}]*{CLOSE})")
_CLOCK = re.compile(r"(\d{1,2}):([0-5]\d)(?::([0-5]\d))?")
_NOON = {"noon": 12 * 60, "midnight": 0}
_YEAR = r"(?:1[6-9]|20)\d\d"
_DAY = r"(?:0?[1-9]|[12]\d|3[01])"  # or month
# 2024-01-05 as in ISO 8601, one of whose zeros may be missing; 1/5/2024 and 2024/1/5 with month and
# day in either order
_DATE = re.compile(
    rf"{_YEAR}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])|[1-9]-0[1-9]|0[1-9]-[1-9])"
    rf"|(?P<year>{_YEAR}/)?{_DAY}/{_DAY}(?(year)|/{_YEAR})"
)


def unit_scale(unit: str) -> tuple[str, Fraction] | None:
    """The base unit of `unit` with its power, such as `m2`, and how many of these `unit` has.

    None for an unknown unit.
    """
    match = re.fullmatch(r"([a-z]+)(?:/([a-z]+))?([23]?)", unit)
    if not match or any(u and u not in _SCALES for u in match.group(1, 2)):
        return None
    power = int(match.group(3) or 1)
    base, factor = _SCALES[match.group(1)]
    if match.group(2):
        below, divisor = _SCALES[match.group(2)]
        return f"{base}/{below}{power}", factor / divisor**power
    return f"{base}{power}", factor**power


def compound_measure(s: str) -> Formula | None:
    """Reads `6 feet 2 inches` or `1 hour, 20 minutes` as one number in the last unit; else None."""
    parts, at = [], 0
    while match := _PART.match(s, at):
        parts.append((match.group(1), units.unit_key(match.group(2)), match.group(2)))
        at = match.end()
    scales = [unit_scale(unit) for _, unit, _ in parts]
    if s[at:].strip() or len(parts) < 2 or len({known and known[0] for known in scales}) > 1:
        return None
    factors = [known[1] for known in scales if known]
    if len(factors) < len(parts) or any(a <= b for a, b in zip(factors, factors[1:], strict=False)):
        return None
    values = [numbers.read_rational(value) or 0 for value, _, _ in parts]
    total = sum(map(operator.mul, values, factors), start=Fraction(0)) / factors[-1]
    return Formula(s, number(total), unit=parts[-1][2])


def unit_as_factor(tree: Tree, unit: str, other: Tree) -> Tree | None:
    """`tree` times its unit `unit`, converted to a unit that is a variable of `other`.

    For example, 5 with the unit kg becomes 5 * 1000 * g if `other` has the variable g, and 5 with
    the unit `square meters` becomes 5 * m^2. None if no variable of `other` is a unit of the same
    quantity.
    """
    letters = variables(other)
    letter = unit.strip(OPEN + CLOSE + " ")
    if letter in units.LETTERS & letters:
        return Product((tree, Symbol(letter)))
    known = [name for name in letters if name.lower() in _SCALES]
    given = unit_scale(units.unit_key(unit))
    if len(known) != 1 or not given:
        return None
    dimension, count = given
    base, size = _SCALES[known[0].lower()]
    power = int(dimension[-1])
    if dimension != f"{base}{power}":
        return None
    factor = count / size**power
    return Product((tree, number(factor), Power(Symbol(known[0]), number(power))))


def time_of_day(node: Node) -> tuple[int, str] | None:
    """The minutes since midnight, and 'am', 'pm' or '' (not stated); None for other nodes."""
    if isinstance(node, Text):
        minutes = _NOON.get(words.text_key(node.source))
        return None if minutes is None else (minutes, "pm" if minutes else "am")
    if isinstance(node, Formula) and isinstance(node.tree, Number) and not node.prefix:
        half = units.unit_key(node.unit)
        hour = node.tree.value
        if half not in ("am", "pm") or hour.denominator != 1 or not 1 <= hour <= 12:
            return None
        return int(hour) % 12 * 60 + 720 * (half == "pm"), half
    if not isinstance(node, Ratio):
        return None
    half = units.unit_key(node.unit)
    match = _CLOCK.fullmatch(re.sub(r"[\s{}]", "", node.source.replace(node.unit, "")))
    if not match or match.group(3) or len(node.parts) != 2 or int(match.group(1)) > 23:
        return None
    hour, minute = int(match.group(1)), int(match.group(2))
    if half in ("am", "pm") and hour <= 12:
        return hour % 12 * 60 + minute + 720 * (half == "pm"), half
    if half:
        return None
    return hour * 60 + minute, ""


def read_date(s: str) -> Text | None:
    """Reads `2024-01-05` and `01/05/2024` as words, and not as a difference or quotient; else None.

    Zeros before a number do not count. Which number is the month is left open.
    """
    return Text(re.sub(r"\b0", "", s)) if _DATE.fullmatch(s) else None


def same_time(a: tuple[int, str], b: tuple[int, str]) -> bool:
    """Whether two times are equal; 8:05 without am or pm equals 8:05 AM and 8:05 PM."""
    if a[0] == b[0] or bool(a[1]) == bool(b[1]):
        return a[0] == b[0]
    bare, exact = (a, b) if b[1] else (b, a)
    return bare[0] < 13 * 60 and bare[0] % 720 == exact[0] % 720
