"""Finds the last formula or number of a text that announces no answer, whole: `2^12`, `6!`."""

import re

from vinejax.grading.dress import MAX_TAIL, undressed
from vinejax.grading.strict.english.words import is_changed

NUMBER = re.compile(
    r"(?i)(?:(?<![\w)\]}])(?:[-−]|(?<![\d)\]}] )[-−]\s))?"
    r"(?:\d{1,3}(?:(?:\.\d{3})+|(?: \d{3})+),\d+(?![\d,.])"
    r"|\d+(?::\d+)+(?:\s?[ap](?:m\b|\.m\.?))?|\d+(?: : \d+)+|\d+ \d+/\d+"
    r"|(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,3}(?: \d{3})+(?!\d)|\d+,\d\d(?![\d,.])|\d+)"
    r"(?:\.\d+)?(?:/\d+)?%?|\.\d+(?:/\d+)?%?)"
)
# A term of a formula without delimiters, and the formula that it is part of: 7\\sqrt3, 2^12 - 1.
_FUNCTION = r"(?<![A-Za-z])(?:sin|cos|tan|cot|sec|csc|log|ln|exp)"
_GROUP = r"(?:[^\s=≈<>{]|\{(?:[^{}]|\{[^{}]*\})*\})*"
_SET = r"(?:(?<![\w^])\{[-−\d./ ]+[,;][-−\d.,;/ ]+\}|(?<==)\{[-−\d./]+\})"  # {1, 2, 3}, S={1}
_PAIR = rf"(?:[(\[][-−\d./ ]+[,;](?!\d{{3}}\b)[-−\d.,;/ ]+[)\]]|{_SET})"
_TERM = (
    rf"(?:{_PAIR}|(?:(?:{_FUNCTION}|negative)\s+)?{_GROUP}[\d\\^√π]{_GROUP}"
    r"|(?<![A-Za-z])[A-Za-z](?![A-Za-z]))"
)
_SCALE = r"\s(?:hundred|thousand|[mb]illion|trillion|dozen)\b"
_RUN = re.compile(
    rf"{_TERM}(?:(?:\s*(?:[-−+*/×·^]|\\(?:times|cdot|div)(?![A-Za-z])|[xX](?=\s*10\s?\^))\s*"
    rf"|\s+mod\s+){_TERM}|\s+(?=\\(?!\()|[√π]|(?:[kcm]?m|in|ft|yd|mi)(?:\^|[²³])){_TERM})*(?:{_SCALE})?"
)
# Signs that a number is part of a formula: a power, root, product, function or variable. Units of
# one letter (5m) and 3D are not such signs.
_BOUND = re.compile(
    r"[\^{}√π×·⁰¹²³⁴-⁹₀-₉¼-¾⅐-⅞]|\\[A-Za-z]|\d[eE][-+]?\d|\d\s?\*\*?\d|[A-Za-z\d)]_[A-Za-z\d]"
    rf"|[\w./+*−-]\(|\||\.\d+\.\.|\d!\s?[-−+*/×·]\s?\d|{_FUNCTION}\s|\smod\s|negative\s|{_SCALE}|\A{_PAIR}"
    r"|(?<![A-Za-z\d])\d+[a-cefijknp-rt-z](?![A-Za-z\d])"
    r"|(?<![A-Za-z])[b-z]\s?[-−+*/]\s?\d|\d\s?[-−+*/]\s?[b-z](?![A-Za-z])"
)
# 3 \\cdot 4 = 12: as in prose, the number after the last sign is the answer
_COMPUTED = re.compile(
    r"(?:[^A-Za-z=]|\\(?:[dt]?frac|cdot|times|div|left|right)(?![A-Za-z]))+=\s*"
    r"(-?(?:[\d.,]*\d|\\[dt]?frac\{\d+\}\{\d+\}))\s*"
)
_PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])")  # 25pi and pi/6, but not \pi
_METRES = re.compile(r"(?<=\d)\s?m(?:\^\{?[23]\}?|[²³])")  # elsewhere m is a variable
FORMULA = re.compile(
    r"(?s)(?<!\\)\$\$(.+?)(?<!\\)\$\$|(?<!\\)\$((?:[^$\\]|\\.)+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]"
)
# After these words a minus that stands alone is a sign: 'it is - 5', but not 'the total - 5'.
_BEFORE_SIGN = re.compile(
    r"(?i)\b(?:is|are|was|be|becomes?|equals?|to|of|by|than|gets?|got|gives?|have|has|obtain|yields?"
    r"|and|or|at|from|add|subtract|plus|minus|times)[\s*_]*\Z|(?:\A|[^\sA-Za-z*_]|(?<![A-Za-z])[A-Za-z])\s*\Z"
)
_BOLD = re.compile(r"\*\*(?![\w(])|(?<![\w)])\*\*")  # but x**2 is a power
_FACTORIAL = re.compile(r"!(?=\s+[a-z]{2}|\s*[-+*/×·=^])")  # '6! ways', but not 'it is 6!'
MAX_RUN = 200  # characters on each side of the last number


def last_formula(text: str) -> str | None:
    """The last formula between delimiters; None if a number follows it or the text has a box."""
    tail = text[-MAX_TAIL:]
    formulas = list(FORMULA.finditer(tail))
    if not formulas or "boxed" in text or NUMBER.search(tail, formulas[-1].end()):
        return None
    formula = undressed(next(filter(None, formulas[-1].groups()), ""))
    if computed := _COMPUTED.fullmatch(formula):
        return computed[1]
    return formula if re.search(r"[A-Za-z\d]", formula) else None


def last_number(text: str) -> str | None:
    """The last number of a text as written, or the formula that it is part of: `7.5e4`, `2^12`.

    None if the words before the number change its value, as in 'half of 16'.
    """
    text = _PI.sub("π", _BOLD.sub(" ", _METRES.sub("", text)))
    last = next(reversed([*NUMBER.finditer(text)]), None)
    if last is None:
        return None
    start = max(text.rfind("\n", 0, last.start()) + 1, last.start() - MAX_RUN)
    line = text[start : last.end() + MAX_RUN].partition("\n")[0]
    if is_changed(text[start : last.start()]):  # 'anything but 8', 'half of 16'
        return None
    run = next((r.group() for r in _RUN.finditer(line) if r.end() >= last.end() - start), "")
    if _BOUND.search(run):
        return undressed(run if run.count("(") == run.count(")") else run.strip("()"))
    number = re.sub(r"^-\s", "- ", last.group().replace("−", "-"))
    if number.startswith("- ") and not _BEFORE_SIGN.search(text[start : last.start()]):
        number = number[2:]  # a dash
    return number.replace("- ", "-", 1) + ("!" if _FACTORIAL.match(text, last.end()) else "")
