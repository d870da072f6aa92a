"""Counts the plain words of a text, and drops the punctuation and the marks around an answer."""

import re

from vinejax.grading.strict.english.denials import DENIED

_COMMAND = re.compile(r"\\[a-zA-Z]+(?:\{[^{}]*\})?")
_WORD = re.compile(r"(?<!\S)[A-Za-z']{2,}(?![^\s.,;:!?])")
# `**12** apples`, *12*, __12__, and the end of bold type that began before the text
_EMPHASIS = re.compile(
    r"(?<![^\s(\[\"'“:=>-])(\*{1,3}|__?|`)(?=[^\s*_`])([^*`\n]{0,80}[^\s*_`])\1"
    r"(?![^\s.,;:!?)\]\"'”’%-])"
)
_END_OF_BOLD = re.compile(r"(?<=[^\s*])\*\*(?=[\s.,;:!?)%]|\Z)")
MAX_TAIL = 1000  # characters of a text that may be an answer as a whole


def words_of(text: str) -> int | None:
    """The number of plain words; None if the text is long or has a box or more than one line."""
    text = text.strip()
    if "\n" in text or "boxed" in text or len(text) > MAX_TAIL:
        return None
    return len(_WORD.findall(_COMMAND.sub(" \\ ", text)))


def undressed(text: str) -> str:
    """Drop dollar signs and punctuation at both ends of a text.

    The point of `.5` and the dots of `0.33...` stay.
    """
    text = re.sub(r"^[\s*$,;:、，]*(?:\.(?!\d)[\s*$,;:]*)?", "", text.replace(DENIED, ""))
    bare = text.rstrip(" \t\n*$,;:.。、！`").strip(" \t\n`").strip()
    if len(bare) > 2 and bare[0] + bare[-1] in ('""', "''", "“”", "‘’"):
        bare = bare[1:-1].rstrip(".,")
    if bare.endswith(")") and bare.count(")") > bare.count("(") and "[" not in bare:
        bare = bare[:-1].rstrip(" .")
    goes_on = text.startswith("..", len(bare)) and re.search(r"\.\d+\Z", bare)
    return f"{bare}..." if goes_on else bare


def without_emphasis(text: str) -> str:
    """The text without the marks of bold and slanted type and of code, as in `**12** apples`.

    Signs of powers and products stay if both of their sides have a space or neither has: 2**10,
    3 * 4.
    """
    return _END_OF_BOLD.sub("", _EMPHASIS.sub(r"\2", text))
