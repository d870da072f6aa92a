"""Rewrites an answer as VinePPO's grader does before it compares: spelling, units, spaces.

Source: `strip_string` in `src/treetune/tasks/math_answer_exctraction.py` of McGill-NLP/VinePPO. The
order of the passes matters and so do the oddities (`\\cdot` disappears, so `2\\cdot3` reads 23; a
trailing `t` after a digit is a unit): published figures depend on them. Every pass takes linear
time, which VinePPO's lazy patterns do not.
"""

import re

_DROPPED_EARLY = ("\\left", "\\right")
_DROPPED_LATE = ("\\$", "$", "x\\in")
_CENTIMETRES = re.compile(r"\{[cm]?m\}(?:\^[23])?")
_TRAILING_T = re.compile(r"(\d)\s*t$")
# Only the last digit before the point is looked at: the same matches, without rescanning a run.
_POINT_ZERO_INSIDE = re.compile(r"(?<=\d)\.0+([^\d])")
_POINT_ZERO_AT_END = re.compile(r"(?<=\d)\.0+$")
_UNCHANGED = re.compile(r"-?[0-9]+(?:,[0-9]+)*")  # most answers; no pass changes them
_WHOLE = re.compile(r"-?[1-9][0-9]*|0")


def normalise(text: str) -> str:
    """An answer in the spelling in which VinePPO's grader compares answers."""
    if _UNCHANGED.fullmatch(text):
        return text
    text = _layout_and_units(text)
    text = _symbols(text)
    if not text:
        return text
    if text[0] == ".":
        text = "0" + text
    text = _brace_argument(_brace_argument(text, "sqrt"), "tan")
    text = _brace_fractions(text.replace(" ", ""))
    return _slash_to_fraction(text).rstrip("\\,.")


def _layout_and_units(text: str) -> str:
    text = text.strip().replace("\n", "").rstrip(".").replace("\\!", "")
    if text.startswith("\\text{") and text.endswith("}"):
        text = text[len("\\text{") : -1]
    for spelling in ("tfrac", "dfrac", "cfrac"):
        text = text.replace(spelling, "frac")
    for command in _DROPPED_EARLY:
        text = text.replace(command, "")
    text = _without_trailing_text(text)
    text = text.replace("^{\\circ}", "").strip().replace("^\\circ", "").strip()
    text = _CENTIMETRES.sub("", text).strip()
    text = text.removesuffix("p.m.").strip()
    return _TRAILING_T.sub(r"\1", text).strip()


def _without_trailing_text(text: str) -> str:
    """Drop the unit that begins at the first `\\text{`, if the text ends in a brace."""
    start = text.find("\\text{")
    if start < 0 or not text.endswith("}"):
        return text
    return text[:start].strip() or text


def _symbols(text: str) -> str:
    for command in _DROPPED_LATE:
        text = text.replace(command, "")
    text = text.replace("\\%", "%").replace(" .", " 0.").replace("{.", "{0.")
    text = text.replace("\\cdot", "").replace("infinity", "\\infty")
    if "\\infty" not in text:
        text = text.replace("inf", "\\infty")
    text = text.replace("+\\inity", "\\infty")  # [sic]: VinePPO's spelling
    text = text.replace("\\mathbf", "").replace("\\mathrm", "")
    text = _without_mbox(text)
    if "j" in text and "i" not in text:
        text = text.replace("j", "i")
    return _POINT_ZERO_AT_END.sub("", _POINT_ZERO_INSIDE.sub(r"\1", text))


def _without_mbox(text: str) -> str:
    """Drop every `\\mbox{...}` up to the next closing brace, even if the braces are nested."""
    kept, position = [], 0
    while (start := text.find("\\mbox{", position)) >= 0:
        end = text.find("}", start)
        if end < 0:
            break
        kept.append(text[position:start])
        position = end + 1
    return "".join(kept) + text[position:]


def _brace_argument(text: str, command: str) -> str:
    """Put braces around the argument of `command`, so that `\\sqrt2` becomes `\\sqrt{2}`.

    Only an argument at the end of the text, such as the `x` in `\\sqrt x`, may follow a space.
    """
    text = re.sub(rf"\\{command}(-?[0-9.a-zA-Z]+)", rf"\\{command}{{\1}}", text)
    return re.sub(rf"\\{command}\s+(\w+)$", rf"\\{command}{{\1}}", text)


def _brace_fractions(text: str) -> str:
    """Rewrite `\\frac12` as `\\frac{1}{2}`, unless the text has a `\\frac` without arguments."""
    first, *rest = text.split("\\frac")
    parts = [first]
    for part in rest:
        if part.startswith("{"):
            parts.append(part)
        elif len(part) < 2:
            return text
        elif part[1] == "{":
            parts.append(f"{{{part[0]}}}{part[1:]}")
        else:
            parts.append(f"{{{part[0]}}}{{{part[1]}}}{part[2:]}")
    return "\\frac".join(parts)


def _slash_to_fraction(text: str) -> str:
    """Rewrite `a/b` as `\\frac{a}{b}` if each part is a whole number or contains `sqrt`."""
    if text.count("/") != 1:
        return text
    above, below = text.split("/")
    if all("sqrt" in part or _WHOLE.fullmatch(part) for part in (above, below)):
        return f"\\frac{{{above}}}{{{below}}}"
    return text
