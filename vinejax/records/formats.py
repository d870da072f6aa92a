"""Numbers and sampled text as they are shown to people; templates escape the results."""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

MAX_BLANK = 40  # characters shown of a text that is blank
_UNUSUAL = re.compile(r"[^\n\t -~]+")


class Clipped(NamedTuple):
    """The start of a text, and the number of characters cut off its end."""

    text: str
    hidden: int = 0


def clip(text: object, limit: int) -> Clipped:
    """The first `limit` characters of str(text), made printable; None gives the empty text.

    A blank text is cut after `MAX_BLANK` characters, because each of its line ends is shown.
    """
    full = "" if text is None else str(text)
    if limit > MAX_BLANK and not full[:limit].strip():
        limit = MAX_BLANK
    return Clipped(printable(full[:limit]), max(0, len(full) - limit))


def trimmed(clipped: Clipped) -> Clipped:
    """`clipped` without empty lines at its ends; a blank text stays as it is.

    A step may begin or end with the line break between it and a neighbouring step.
    """
    bare = clipped.text.lstrip("\n") if clipped.hidden else clipped.text.strip("\n")
    return clipped._replace(text=bare) if bare.strip() else clipped


def printable(text: str) -> str:
    """Puts visible symbols for characters that are invisible, reorder text or cannot be encoded."""
    return _UNUSUAL.sub(_pictures, text)


def _pictures(run: re.Match[str]) -> str:
    characters = run.group()
    return characters if characters.isprintable() else "".join(map(_picture, characters))


def _picture(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    code = ord(character)
    # Unicode has pictures of the control characters of ASCII.
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


def two_decimals(value: float | None, signed: bool = False) -> str:
    """A number with two decimals, as `decimals` writes it."""
    return decimals(value, 2, signed)


def three_decimals(value: float | None) -> str:
    """A number with three decimals or, if it is 1,000 or more, as `three_digits` writes it."""
    is_large = value is not None and abs(value) >= 1000
    return three_digits(value) if is_large else decimals(value, 3)


def decimals(value: float | None, places: int, signed: bool = False) -> str:
    """A number with `places` decimals and a true minus sign; an en dash for None."""
    if value is None:
        return "–"
    rounded = round(value, places)
    sign = "−" if rounded < 0 else "+" if signed and rounded > 0 else ""
    return f"{sign}{abs(rounded):.{places}f}"


def three_digits(value: float | None) -> str:
    """A number with about three significant digits, such as 0.530, 12.3 or 1.2e-05.

    A whole number below a million is written with all of its digits.
    """
    if value is None:
        return "–"
    size, sign = abs(value), "−" if value < 0 else ""
    if size >= 1e6:
        return f"{sign}{size / 1e6:.3g}M" if size < 999.5e6 else f"{sign}{size:.2e}"
    if size >= 100 or size == int(size):
        return f"{sign}{size:,.0f}"
    if size < 1e-3:
        return f"{sign}{size:.1e}"
    return f"{sign}{size:#.3g}".rstrip(".")


def tick_label(value: float | None) -> str:
    """The label of a tick: the text of `three_digits` without trailing zeros."""
    label = three_digits(value)
    if "e" in label:
        return label.replace(".0e", "e")
    return label.rstrip("0").rstrip(".") if "." in label else label


def tick_labels(values: Sequence[float]) -> list[str]:
    """The labels that `tick_label` gives to the ticks of an axis.

    If two labels would be equal, all labels are written with more digits instead.
    """
    labels = [tick_label(value) for value in values]
    if len(set(labels)) == len(labels):
        return labels
    return [f"{value:.12g}".replace("-", "−") for value in values]
