"""How values and sampled text are written on the page. Escaping is the template's, always."""

import dataclasses
import re
import unicodedata

_UNUSUAL = re.compile(r"[^\n\t -~]+")


@dataclasses.dataclass(frozen=True)
class Clipped:
    """The start of a text, and how many characters were left out after it."""

    text: str
    hidden: int = 0


def clip(text: object, limit: int) -> Clipped:
    """The first `limit` characters, printable; None is the empty text."""
    full = "" if text is None else str(text)
    return Clipped(printable(full[:limit]), max(0, len(full) - limit))


def printable(text: str) -> str:
    """Makes characters visible that would be lost, reorder the page or fail to encode."""
    return _UNUSUAL.sub(_pictures, text)


def _pictures(run: re.Match[str]) -> str:
    found = run.group()
    return found if found.isprintable() else "".join(map(_picture, found))


def _picture(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    code = ord(character)
    # Unicode has pictures of the control characters of ASCII.
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


def fixed(value: float | None, signed: bool = False) -> str:
    """Two decimals, with a true minus sign; an en dash where there is no value."""
    if value is None:
        return "–"
    rounded = round(value, 2) + 0.0  # no negative zero
    sign = "−" if rounded < 0 else "+" if signed and rounded > 0 else ""
    return f"{sign}{abs(rounded):.2f}"


def short(value: float | None) -> str:
    """Three significant digits: 0.530, 12.3, 4,210, 1.2e-05; whole numbers as they are."""
    if value is None:
        return "–"
    size, sign = abs(value), "−" if value < 0 else ""
    if size >= 1e6:
        return f"{sign}{size / 1e6:.3g}M" if size < 1e9 else f"{sign}{size:.2e}"
    if size >= 100 or size == int(size):
        return f"{sign}{size:,.0f}"
    if size < 1e-3:
        return f"{sign}{size:.1e}"
    return f"{sign}{size:#.3g}".rstrip(".")


def tick(value: float | None) -> str:
    """A label of an axis: as `short`, without the zeros that fill it up."""
    label = short(value)
    if "e" in label:
        return label.replace(".0e", "e")
    return label.rstrip("0").rstrip(".") if "." in label else label


def duration(seconds: float) -> str:
    """Two units: 41 s, 3 min 20 s, 1 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02d} min"
