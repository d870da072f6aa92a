"""Rewrites numbers in a text from everyday notation to the notation that the parsers read.

These are money, millions, ordinals, per cent, degrees with minutes, temperatures, repeating
decimals, and bases in words. Each pass takes time linear in the text and never raises.
"""

import re
from fractions import Fraction

from vinejax.grading.strict.marks import AND, CLOSE, OPEN

_TEXT = r"\\(?:text|mbox|mathrm|textrm|textsuperscript|rm)\s*"
_SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_FACTORS = {word: f"10^{{{power}}}" for word, power in [("hundred", 2), *_SCALES.items()]}
_FACTORS |= {"ten": "10", "dozen": "12", "score": "20"}
_ROOM = rf"(?P<open>[\s~]*(?:\\[ ,;])?[\s~]*(?:{_TEXT}\{{[\s~]*)?)"
_SCALE = re.compile(
    rf"(?<=[\d}}]){_ROOM}(?P<scale>{'|'.join(_FACTORS)})s?(?![\w-])(?P<close>\s*\}})?"
)
# Fraction words, as in 7 thousandths and 3 quarters; in the singular after 1 only.
_BELOW = {"half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6}
_BELOW |= {"seventh": 7, "eighth": 8, "ninth": 9, "tenth": 10, "hundredth": 100}
_BELOW |= {f"{word}th": 10**power for word, power in _SCALES.items()}
_PART = re.compile(
    rf"(?<=[\d}}]){_ROOM}(?P<scale>{'|'.join(_BELOW)})(?P<plural>s?)(?![\w-])(?P<close>\s*\}})?"
)
_POWER_WORD = re.compile(
    rf"(?<![\w.,])(?P<base>\d+(?:\.\d+)?)[\s~]*(?P<open>{_TEXT}\{{[\s~]*)?"
    r"(?P<word>squared|cubed|factorial)(?P<close>\s*\})?(?=[\s$.}]*(?:$|[,;=]))"
)
_POWERS = {"squared": "^{2}", "cubed": "^{3}", "factorial": "!"}
_NEGATIVE = re.compile(
    rf"(?i)(?P<before>^|[=,($])\s*(?P<open>{_TEXT}\{{\s*)?(?:negative|minus)\b[\s~]*(?P<close>\}})?"
    r"\s*(?=[\d.$]|\\(?:[dt]?frac|sqrt|pi)(?![A-Za-z]))"
)
# Functions of one number in words: the square root of 16.
_FUNCTIONS = {"square root": r"\sqrt{@}", "cube root": r"\sqrt[3]{@}", "square": "(@)^{2}"}
_FUNCTIONS |= {"cube": "(@)^{3}", "triple": r"3\cdot @", "half": r"\frac{@}{2}", "opposite": "-(@)"}
_FUNCTIONS |= {"reciprocal": r"\frac{1}{@}", "factorial": "(@)!", "absolute value": "|@|"}
_FUNCTIONS |= dict.fromkeys(("double", "twice"), r"2\cdot @")
_FUNCTION_OF = re.compile(
    rf"(?i)(?:^|(?<=[=,($]))\s*(?:{_TEXT}\{{\s*)?(?:the\s+|an?\s+)?(?P<name>{'|'.join(_FUNCTIONS)})"
    r"(?:\s+of)?(?:\s+the)?\b[\s~]*\}?\s*"
    r"(?P<number>-?\d[\d.]*|\\[dt]?frac\{\d+\}\{\d+\}|\\pi|[a-z])(?=[\s$.)}]*(?:$|,))"
)
# K in `300 K` is kelvin; any other letter outside \text is a variable.
_KELVIN = re.compile(r"(?<=\d)(?:\s|~|\\[ ,;])+K(?=[\s$.]*$)")
_APOSTROPHES = re.compile(r"(?<![\w.,'}])[1-9]\d{0,2}(?:'\d{3})+(?![\d'\"])")  # 1'234'567
_POINTS_BETWEEN = re.compile(r"(?<![\w.,])[1-9]\d{0,2}(?:\.\d{3}){2,}(?!\d|\.\d)")  # 1.234.567
_CURRENCIES = {"\\$": "dollars", "€": "euros", "£": "pounds", "¥": "yen", "¢": "cents"}
_SIGN = r"(?P<sign>\\\$|[€£¥¢])"
_TIMES = r"(?:\s*(?:\\cdot|\\times)\s*10\^\{\d+\})?"
# If the amount continues, as in `\$4\frac{1}{2}` or `\$4 1/2`, the sign stays and is dropped later.
# A price per something, as in `\$10/hour`, does not continue.
_PER = rf"/\s*(?:{_TEXT}\{{\s*)?[a-z]{{2,}}"
_GOES = rf"(?![\d.,]|\s*(?:(?!{_PER})[/^*(+-]|\\[dt]?frac|\d+\s*/))"
_MONEY_BEFORE = re.compile(rf"{_SIGN}\s*\}}?\s*(?P<amount>-?[\d.,]*\d{_TIMES}){_GOES}")
_MONEY_AFTER = re.compile(rf"(?P<amount>\d{_TIMES})\s*{_SIGN}")
_MONEY_CODE = re.compile(r"\b(?P<sign>USD|EUR|US\\\$)\s*(?P<amount>[\d.,]*\d)")
_CODES = {"USD": "dollars", "EUR": "euros", "US\\$": "dollars"}
_CURRENCY_NAME = re.compile(
    rf"(?i)(?:\s|~|\\[ ,;]|\}})*(?:{_TEXT}\{{)?[\s~]*"
    r"(?P<name>dollar|euro|pound|yen|cent)s?(?![a-z])"
)
_TEXT_SIGN = re.compile(rf"{_TEXT}\{{\s*(\\\$|[€£¥])\s*\}}")
_PER_CENT = re.compile(r"\bper[\s~]+cent\b")
_POINTS = re.compile(r"(\bpercent|\\?%)[\s~]+points?\b")
_ORDINAL = re.compile(
    rf"(?<=\d)(?:\s*\^\s*)?(?:\{{\s*)?(?:{_TEXT}\{{?\s*)?(?P<end>st|nd|rd|th)(?![A-Za-z])(?P<close>\s*\}}*)"
)
_CIRCLE = r"\^\s*(?:\\circ|\{\s*\\circ\s*\})"
_SEXAGESIMAL = re.compile(
    rf"(\d+)\s*{_CIRCLE}\s*(\d+(?:\.\d+)?)\s*(?:'|\^\s*\{{?\\prime\}}?)(?!')"
    r"(?:\s*(\d+(?:\.\d+)?)\s*(?:''|\"|\^\s*\{?\\prime\\prime\}?))?"
)
_FEET_INCHES = re.compile(r"(?<![\w.}])(\d+)\s*'\s*(\d+(?:\.\d+)?)\s*(?:''|\")")
_LETTER_O = re.compile(r"(?<=\d)\^\s*(?:o|\{\s*o\s*\})(?![A-Za-z])")
_TEMPERATURE = re.compile(
    rf"{_CIRCLE}[\s~]*(?:\\,)?(?:{_TEXT}\{{\s*)?(?P<scale>[CF])\b(?P<close>\}}?)"
)
_DEGREES_OF = {"C": "celsius", "F": "fahrenheit"}
_GOES_ON = re.compile(r"(?<![\d.])(\d*)\.(\d{2,60}?)\s*(?:\.{3,}|\\[lc]?dots(?![A-Za-z]))")
# Other notations of a repeating decimal: 0.1(6), 0.\dot{1}\dot{8}, a bar or a dot over a character.
_PERIOD = re.compile(
    r"(?<![\w.])(\d{0,60}\.\d{0,60})(?:\((\d{1,60})\)(?![\w(^])"
    rf"|(?:{_TEXT}\{{\s*)?(\d)[\s~]*(?:{_TEXT}\{{\s*)?(?:repeating|recurring)\b\s*\}}?)"
)
# The result after a product such as 0.15(60), which looks like a repeating decimal
_RESULT = re.compile(r"\s*=\s*(?:\\?\$)?\s*(\d{1,60}(?:\.\d{1,60})?)(?![\w.,/(^\\])")
_OVER = re.compile("(\\d)[\u0304\u0305\u0307]")
_DOTS = re.compile(r"(?<=\d)(\.\d*)(\\dot\s*\{?\d\}?(?:\d|\\dot\s*\{?\d\}?)*)(?<=[\d}])")
# A bar or dot over digits, with braces around it or after a comma: 0.{\overline{6}}, 0,\bar{6}
_BARRED = re.compile(
    r"(?<=\d)(?:(?P<point>\.\d*)|\{\.\}|\{,\}|,)\s*(?:\{\s*)?\\(?P<bar>overline|bar|dot)\s*"
    r"(?:\{\s*){0,2}(?P<digits>\d{1,60})(?:\s*\})*"
)
_BASES = "two three four five six seven eight nine ten eleven twelve".split()
_BASE_OF: dict[str, int] = {word: base for base, word in enumerate(_BASES, 2)}
_BASE_WORD = re.compile(rf"_\s*\{{?\s*(?:{_TEXT}\{{)?\s*(?P<base>{'|'.join(_BASES)})\b\s*\}}*")
_SUBSCRIPT = re.compile(
    rf"_\s*\{{\s*(?:\(\s*(?P<base>\d{{1,2}})\s*\)|(?:{_TEXT}\{{)?\s*base[\s~-]*(?P<open>\}}?)\s*"
    rf"(?P<said>\d{{1,2}}|{'|'.join(_BASES)})\s*(?P<close>\}}?))\s*\}}"
)
_IN_BASE = re.compile(
    rf"(?<=[\dA-Z])[\s~]*(?:{_TEXT}\{{)?\s*(?:\(|in\s+|\bin\s*)?base[\s~-]*\}}?\s*"
    rf"(?P<base>\d{{1,2}}|{'|'.join(_BASES)})\b\s*[)}}]*"
)


def plain_quantities(s: str) -> str:
    """Rewrite all quantities of a text in the notation that the parsers read."""
    s = _BARRED.sub(_barred, s) if "\\" in s else s
    s = _OVER.sub(r"\\dot{\1}", s)
    s = _DOTS.sub(lambda m: rf"{m[1]}\overline{{{re.sub(r'[^0-9]', '', m[2])}}}", s)
    s = _PERIOD.sub(_period, s)
    s = _APOSTROPHES.sub(lambda m: m.group().replace("'", ""), s)
    s = _POINTS_BETWEEN.sub(lambda m: m.group().replace(".", ""), s)
    s = _KELVIN.sub(r"\\text{ K}", s)
    s = _POINTS.sub(r"\1", _PER_CENT.sub("percent", s))
    s = _FUNCTION_OF.sub(lambda m: _FUNCTIONS[m["name"].lower()].replace("@", m["number"]), s)
    s = _NEGATIVE.sub(_minus, _POWER_WORD.sub(_power, s))
    s = _PART.sub(_part, _SCALE.sub(lambda m: _times(rf"\cdot {_FACTORS[m['scale']]}", m), s))
    s = _TEXT_SIGN.sub(r"\1", s)
    s = _MONEY_CODE.sub(lambda m: f"{m['amount']} {_CODES[m['sign']]} ", s)
    for pattern in (_MONEY_BEFORE, _MONEY_AFTER):
        s = pattern.sub(_money, s)
    s = _ORDINAL.sub(_without_ending, s)
    s = _SEXAGESIMAL.sub(r"(\1+\\frac{\2}{60}+\\frac{0\3}{3600})^\\circ ", s)
    s = _FEET_INCHES.sub(r"\1 feet \2 inches", s)
    s = _LETTER_O.sub(r"^\\circ ", s)
    s = _TEMPERATURE.sub(_temperature, s)
    s = _GOES_ON.sub(_repeating, s)
    s = _SUBSCRIPT.sub(lambda m: f"_{{{_base(m['base'] or m['said'])}}}", s)
    s = _BASE_WORD.sub(lambda m: f"_{{{_base(m['base'])}}}", s)
    return _IN_BASE.sub(lambda m: f"_{{{_base(m['base'])}}}", s)


def _money(match: re.Match[str]) -> str:
    """The amount and the name of its currency, which is left out if it follows: `\\$18 dollars`."""
    currency = _CURRENCIES[match["sign"]]
    follows = _CURRENCY_NAME.match(match.string, match.end())
    is_said = follows and currency.startswith(follows["name"].lower())
    return match["amount"] if is_said else f"{match['amount']} {currency} "


def _period(match: re.Match[str]) -> str:
    """The repeating decimal 0.15(60) with a bar; no change to the product in `0.15(60) = 9`."""
    start, digits = match[1], match[2] or match[3]
    result = match[2] and _RESULT.match(match.string, match.end())
    if result and Fraction(f"0{start}0") * int(digits) == Fraction(result[1]):
        return match.group()
    return rf"{start}\overline{{{digits}}}"


def _barred(match: re.Match[str]) -> str:
    """Rewrite 0.{\\overline{6}} as 0.\\overline{6}; closing braces stay if they opened before."""
    text, bar = match.group(), match["bar"]
    left = "}" * (text.count("}") - text.count("{"))
    return rf"{match['point'] or '.'}\{bar}{{{match['digits']}}}{left}"


def _part(match: re.Match[str]) -> str:
    """Rewrite the fraction word of `7 thousandths` as a factor. No change to `2 third`, which lacks
    the plural, and to `7 quarters`, which may be coins."""
    before = match.string[max(0, match.start() - 3) : match.start()]
    count = re.search(r"(?<![\d.,/}])\d+\Z", before)
    number, below = int(count.group()) if count else 0, _BELOW[match["scale"]]
    if not match["plural"] and number != 1 or match["scale"] == "quarter" and not 0 < number <= 4:
        return match.group()
    return _times(rf"\cdot \frac{{1}}{{{below}}}", match)


def _times(factor: str, match: re.Match[str]) -> str:
    """The text that replaces a match of a word: `factor`, and a brace that has no partner in it.

    For example, the match in `5\\text{million years}` has only the opening brace, so the result is
    the factor and `\\text{`, which belongs to the rest `years}`.
    """
    opened = match["open"].strip(" ~,;\\\n\t")
    if "{" in opened:
        return factor if match["close"] else f"{factor}\\{opened}"
    return factor + (match["close"] or "")


def _power(match: re.Match[str]) -> str:
    """Rewrite `5 squared` as `5^{2}`; a closing brace stays if it was opened before the match."""
    return match["base"] + _POWERS[match["word"]] + ("" if match["open"] else match["close"] or "")


def _minus(match: re.Match[str]) -> str:
    """Rewrite `negative 5` as `-5`.

    Likewise `\\text{negative} 5` becomes `-5`, and `\\text{negative 5}` becomes `\\text{-5}`.
    """
    if match["close"] and not match["open"]:
        return match.group()
    opened = "" if match["close"] else match["open"] or ""
    return f"{match['before']}{opened}-"


def _without_ending(match: re.Match[str]) -> str:
    """Drop the ending of `3rd` and braces around the ending; the wrong ending of `3th` stays."""
    digits = re.search(r"\d+$", match.string[max(0, match.start() - 4) : match.start()])
    number = int(digits.group()) if digits else 0
    last = 0 if number % 100 in (11, 12, 13) else number % 10
    if match["end"] != {1: "st", 2: "nd", 3: "rd"}.get(last, "th"):
        return match.group()
    opened = match.group().count("{")
    return match["close"].replace("}", "", opened) if match["close"].count("}") >= opened else ""


def _temperature(match: re.Match[str]) -> str:
    opened = "{" in match.group()[match.group().rfind("circ") + 4 :].removeprefix("}")
    return f" {_DEGREES_OF[match['scale']]} " + ("" if opened else match["close"])


def _repeating(match: re.Match[str]) -> str:
    """Rewrite 0.1666... as 0.1\\overline{6}; no change if no block of digits repeats."""
    whole, digits = match.groups()
    for length in range(1, len(digits) // 2 + 1):
        block, times = digits[-length:], 3 if length == 1 else 2
        if digits.endswith(block * times):
            head = digits
            while head.endswith(block):
                head = head.removesuffix(block)
            return rf"{whole or 0}.{head}\overline{{{block}}}"
    return match.group()


def _base(word: str) -> str:
    return str(_BASE_OF.get(word, word))


LONGEST_SAID = 200  # characters of an answer that may be a number in words
_SMALL = {w: i for i, w in enumerate("zero one two three four five six seven eight nine".split())}
_SMALL |= {w: i for i, w in enumerate("ten eleven twelve thirteen fourteen fifteen".split(), 10)}
_SMALL |= {"sixteen": 16, "seventeen": 17, "eighteen": 18, "nineteen": 19}
_TENS = {w: 10 * i for i, w in enumerate("twenty thirty forty fifty sixty".split(), 2)}
_TENS |= {"seventy": 70, "eighty": 80, "ninety": 90}
_CARDINALS = {**_SMALL, **_TENS}
_ORDINALS = {"first": 1, "second": 2, "third": 3, "fifth": 5, "eighth": 8, "ninth": 9}
_ORDINALS |= {"twelfth": 12}
_ORDINALS |= {w.removesuffix("y") + "ieth": n for w, n in _TENS.items()}
_ORDINALS |= {f"{w}th": n for w, n in _SMALL.items() if f"{w}th" not in ("oneth", "twoth")}
_PARTS = {"half": 2, "quarter": 4, **{w: n for w, n in _ORDINALS.items() if n > 2}}


# `two thirds of the pie`, but not `half of 16`
_SHARE = re.compile(
    rf"((?:[a-z -]+ )?(?:{'|'.join(_PARTS)}|halve)s?)"
    r" of (?:the|an?|his|her|its|their|all) [a-z '-]{3,}"
)


def spoken_number(text: str) -> Fraction | None:
    """The value of `twenty-five`, `two thirds`, `third` (3) and the like; None for other words."""
    words = text.casefold().replace("-", " ").split()
    if not 0 < len(words) <= 12:
        return None
    if words[0] in ("negative", "minus"):
        value = spoken_number(" ".join(words[1:]))
        return None if value is None else -value
    if words[-1].removesuffix("s") in _PARTS or words[-1] == "halves":
        below = _PARTS.get(words[-1].removesuffix("s"), 2)
        before = words[:-1]
        above = 1 if before in ([], ["a"], ["an"], ["one"]) else _cardinal(before)
        if above is not None and (before or below in (2, 4) and words[-1][0] in "hq"):
            return Fraction(above, below)
    if words[-1] in _ORDINALS:
        last = _ORDINALS[words[-1]]
        before = _cardinal(words[:-1]) if words[:-1] else 0
        fits = before is not None and (before == 0 or last < 10 and before % 10 == 0)
        return Fraction((before or 0) + last) if fits else None
    value = _cardinal(words)
    return None if value is None else Fraction(value)


def said_number(answer: str) -> Fraction | None:
    """The value of an answer such as `a hundred and five`, `3 and a half` or `half of the pie`.

    None for other answers, such as lists like `twenty and five`. `answer` is what `clean_answer`
    returns, which marks words, and `and` as what separates items.
    """
    if len(answer) > LONGEST_SAID:
        return None
    marked = answer.casefold().replace(AND, " and ")
    text = " ".join(re.sub(f"[{OPEN}{CLOSE}]", " ", marked).split())
    if share := _SHARE.fullmatch(text):
        text = share[1]
    whole, joined, part = text.rpartition(" and ")
    if not joined:
        return spoken_number(text) if OPEN in answer else None
    if whole.rpartition(" ")[2] in ("hundred", *_SCALES):
        return spoken_number(text)
    number = Fraction(whole) if whole.isdecimal() and len(whole) < 10 else spoken_number(whole)
    rest = None if part.isdecimal() else spoken_number(part)
    if number is None or rest is None or number.denominator > 1 or not 0 < rest < 1:
        return None
    return number - rest if number < 0 else number + rest


def _cardinal(words: list[str]) -> int | None:
    """The value of words such as `two thousand five hundred and six`; None for other words."""
    total = current = 0
    for i, word in enumerate(words):
        if word == "a" and i == 0 and len(words) > 1:
            current = 1
        elif word in _CARDINALS:
            room = 10 if word in _SMALL and _SMALL[word] < 10 else 100
            if current % room or (current % 100 in range(10, 20)) or (word == "zero" and i):
                return None
            current += _CARDINALS[word]
        elif word == "hundred" and current < 10:
            current = 100 * max(1, current)
        elif word == "dozen":
            current = 12 * max(1, current)
        elif word in _SCALES:
            total, current = total + max(1, current) * 10 ** _SCALES[word], 0
        elif word != "and" or i == 0:
            return None
    return total + current if words else None
