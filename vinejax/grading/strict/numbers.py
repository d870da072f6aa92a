"""Reads and compares plain numbers exactly, without a parser, sympy or mpmath."""

import re
import struct
from fractions import Fraction

MAX_DIGITS = 2000  # beyond this, numbers are compared as text
LONG_DECIMAL = 10  # a decimal with this many digits or more is read as a printed double
DOUBLE = Fraction(1, 10**15)  # relative error of a few operations in float64

_DECIMAL = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+))?")
_FRACTION = re.compile(r"([+-]?)\\[dtc]?frac\{([+-]?\d+)\}\{([+-]?\d+)\}|([+-]?)(\d+)/(\d+)")
_SMALL_FRACTION = re.compile(r"([+-]?)\\[dtc]?frac\s?(\d)\s?(\d)")
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d]|,\d)")
_DEGREES = re.compile(
    r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\ue000degrees?\ue001)\s*[)\]]"
)  # (6,235^\circ)
# Numbers with a comma before the decimals and points or spaces between thousands: 1.234,56
_EUROPEAN = re.compile(r"(-?[1-9]\d{0,2}(?:(?:\.\d{3})+|(?: \d{3})+)),(\d+)")
# `2e-1`, which within a formula is twice Euler's e less 1.
SIGNED_POWER = re.compile(r"\s*-?(?:\d+\.?\d*|\.\d+)[eE][+-]\d+\s*")
_BASE = re.compile(r"(-?)[{(]?([0-9A-Z.]+)[})]?_\{?(\d{1,2})\}?")


def read_decimal(text: str) -> Fraction | None:
    """The exact value of e.g. `12`, `0.5` or `1e3`; None for other texts and for very long ones."""
    if len(text) > MAX_DIGITS:
        return None
    match = _DECIMAL.fullmatch(text)
    if not match or not (match.group(2) or match.group(3)) or not text.isascii():
        return None
    sign, whole, part, exponent = match.groups()
    if exponent and len(exponent) > 5:
        return None
    power = int(exponent or 0)
    if abs(power) > MAX_DIGITS:
        return None
    value = Fraction(int((whole or "0") + (part or "")), 10 ** len(part or ""))
    return (-value if sign == "-" else value) * Fraction(10) ** power


def read_rational(text: str) -> Fraction | None:
    """The exact value of a decimal or a fraction of integers; None for other texts."""
    value = read_decimal(text)
    if value is not None or len(text) > MAX_DIGITS or not text.isascii():
        return value
    match = _FRACTION.fullmatch(text) or _SMALL_FRACTION.fullmatch(text)
    if not match:
        return None
    sign, top, bottom = (group for group in match.groups() if group is not None)
    if int(bottom) == 0:
        return None
    return Fraction(int(top), int(bottom)) * (-1 if sign == "-" else 1)


def is_too_long(text: str) -> bool:
    """Whether a text is a decimal that `read_decimal` does not read because of its length."""
    return len(text) > MAX_DIGITS and _DECIMAL.fullmatch(text) is not None


def same_number(a: Fraction, b: Fraction, a_text: str, b_text: str) -> bool:
    """Whether two numbers are equal, or one is a long decimal that the other rounds to.

    If both are decimals, the longer one must be what floating-point arithmetic may print for the
    shorter one.
    """
    if a == b or (read_decimal(a_text) is None) != (read_decimal(b_text) is None):
        return a == b or rounds_to(a, b_text) or rounds_to(b, a_text)
    return _prints(a, a_text, b_text) or _prints(b, b_text, a_text)


def _prints(value: Fraction, short: str, shown: str) -> bool:
    """Whether float64 or float32 arithmetic with the result `short` may print `shown` instead.

    An example is 0.30000000000000004 for 0.3. `value` is the exact value of `short`.
    """
    digits, most = significant_digits(shown), significant_digits(short)
    if digits in (16, 17) and most <= 15 and rounds_to(value, shown):
        return True
    if not 14 <= digits <= 17 or most > 6 or abs(value) > 10**38:
        return False
    return struct.unpack("f", struct.pack("f", value))[0] == float(shown)


def rounds_to(value: Fraction, shown: str) -> bool:
    """Whether `value` rounds to `shown`, a decimal of at least LONG_DECIMAL digits.

    Shorter decimals are never approximations: 0.333 is not a third. From 16 digits on, the last
    digit may be off by 1. With 16 or 17 digits, as in a printed double, it may be off by more, if
    the relative error is at most DOUBLE.
    """
    exact, digits = read_decimal(shown), significant_digits(shown)
    if exact is None or digits < LONG_DECIMAL:
        return False
    if digits in (16, 17) and abs(exact - value) <= DOUBLE * abs(value):
        return True
    mantissa, _, exponent = shown.lower().partition("e")
    last = Fraction(10) ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return abs(exact - value) <= (last if digits > 15 else last / 2)


def significant_digits(shown: str) -> int:
    """The number of significant digits of a decimal; 0 for a number without a decimal point."""
    mantissa = shown.lower().partition("e")[0]
    return len(mantissa.lstrip("+-0.").replace(".", "")) if "." in mantissa else 0


def join_thousands(text: str) -> str:
    """Drop the commas that separate groups of three digits, as in `12,345`, and no others."""
    return _THOUSANDS.sub(_join, text) if "," in text else text


def from_european(text: str) -> str | None:
    """`1.234,56` or `1 234,56` as `1234.56`; None for other texts."""
    match = _EUROPEAN.fullmatch(text.strip())
    return match and f"{re.sub('[. ]', '', match[1])}.{match[2]}"


def _join(match: re.Match[str]) -> str:
    before = match.string[: match.start()].rstrip("+- ")[-1:]
    after = match.string[match.end() :].lstrip(" ")[:1]
    # Within brackets the commas stay: (-36,104] is an interval, [1,200] is no number.
    if _DEGREES.match(match.string, match.end()):
        after = ")"
    pair = before and before in "([\u2983" and after and after in ")]\u2984"
    return match.group() if pair else match.group().replace(",", "")


def read_based(text: str) -> tuple[str, int] | None:
    """Digits and base of a number such as `204_5` or `-{A5}_{11}`; None for other texts."""
    match = _BASE.fullmatch(text.replace(" ", ""))
    if not match or not any(c.isdigit() for c in match[2]):
        return None
    return without_zeros(match[1] + match[2]), int(match[3])


def without_zeros(digits: str) -> str:
    """Drop the zeros before the digits of a number, behind its minus."""
    sign = digits[: digits.startswith("-")]
    return sign + (digits[len(sign) :].lstrip("0") or "0")
