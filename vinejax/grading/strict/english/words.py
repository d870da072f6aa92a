"""Finds and compares words in answers: whole texts, `and` and `or`, words beside a number."""

import re

from vinejax.grading.strict.english import units
from vinejax.grading.strict.marks import AND, CLOSE, OPEN, OR

# Names that are mathematics even without a backslash.
FUNCTIONS = {"sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "exp", "log", "ln"}
FUNCTIONS |= {"arcsin", "arccos", "arctan", "max", "min", "gcd", "lcm", "lg"}
_PLAIN_COMMANDS = {
    **{name: name for name in FUNCTIONS | {"sqrt", "pi", "theta", "alpha", "beta", "infty"}},
    **dict.fromkeys(["infinity", "Infinity", "inf", "oo"], "infty"),
}
_PERCENT = {"percent", "percentage", "percents", "pct"}
_JOINERS = {"and": AND, "or": OR}
# Short words that no one means as a product of variables; all longer runs of letters are words.
_SHORT = set(
    """all am any are area as at base be bits blue but by byte can cube dime each east edge even
    face fall few five four game girl gray grey half has he her high him his if is it its kite left
    less line man many me mean men more most my near next nine only pair past peak per pink rate
    ray real red rise same set sets side six sum ten the them then they this tie true unit up us
    way ways we west win with yes""".split()
)
_SHORT |= {"sq", "cu"} | {name for name in units.NAMES if len(name) > 1 and name.isalpha()}
EMPTY = {"nosolution", "nosolutions", "norealsolution", "norealsolutions", "emptyset", "nullset"}
REALS = {"allrealnumbers", "allreals", "realnumbers", "allrealnumber", "allrealvalues"}
_SYNONYMS = {"dne": "doesnotexist", "doesn'texist": "doesnotexist", "undef": "undefined"}
_SYNONYMS |= {"infinitelymanysolutions": "infinitelymany"}
_DENIALS = re.compile(
    r"\b(?:not?|non|none|never|nothing|anything|nowhere|neither|nor|cannot|\w+n't|but|other|unlike"
    r"|without|except|instead|false|wrong|incorrect|invalid|excluded|rejected|impossible)\b"
)
_CHANGES = re.compile(
    r"\d|\b(?:negative|minus|less|fewer|more|greater|least|most|than|under|over|below|above|between"
    r"|times|plus|half|double|triple|twice|inverse|opposite|reciprocal|to|if|repeating|recurring)\b"
)
# Words that change the number after them: a loss, a relation, a doubt, or most words with 'of'.
CHANGES_NEXT = re.compile(
    r"\b(?:loss|lost|losing|down|decreas|declin|drop|fall|fell|reduc|debt|deficit|ow(?:e|ing)|root"
    r"|square|cube|log|divi[ds]|multipl|negat|mod|next|previous|increas|rais|(?:by|from|with|near|past"
    r"|beyond|after|before|until|within|against|versus|off|can|could|may|might|would)\b)|\b(?!(?:profit"
    r"|total|sum|area|volume|length|width|height|radius|distance|speed|rate|value|answer|cost|price"
    r"|probability|chance|m(?:axim|inim)um|average|mean|amount|score|angle|slope)s?\b)\w+\s+of\b"
)
# Functions of the number that follows.
_APPLIED = re.compile(
    r"\b(?:half|double|twice|triple|root|the square|the cube|reciprocal|opposite|than|after|before)"
    r"(?: of)?(?: the)?$"
)
# Words that judge the number before them: 'is too large', but not 'is the answer'.
JUDGES_LAST = re.compile(
    r"\b(?:fails?|does|would|could|might)\b|\b(?:is|was)\b"
    r"(?!\s+(?:the|our|my)?\s*(?:(?:correct|right|final|only|desired)\b\s*)?"
    r"(?:answer|solution|result|value)?\W*\Z)"
)

_RUN = re.compile(
    r"(?<=[\d} ])(?:km|cm|ft|mi|m)/(?:hr|sec|min|s|h)(?![A-Za-z])(?:\^\{?2\}?)?|"
    rf"\\(?:begin|end)\s*\{{\w+\*?\}}|\\[A-Za-z]+|{OPEN}([^{CLOSE}]*){CLOSE}"
    r"|(?<![A-Za-z])(?:[AaPp]\.[Mm]\b\.?)|[A-Za-z]{2,}"
)


# The noun of `18 eggs`; `2 xyz`, which has no vowel, is a product.
_COUNTED = re.compile(r"(?<=\d\s)(?=[a-z]*[aeiou])[a-z]{3,4}(?![A-Za-z])")
_UNIT_BEFORE = re.compile(rf"{CLOSE}\s*(?:/|\\cdot)\s*$")  # \text{ m}/\text{s}
# 5\text{m}, 2\pi\text{m}^2 at the end of an answer or of an item
_AMOUNT_BEFORE = re.compile(r"(?:[\d.})]|\\pi)[\s~]*$")
_UNIT_AFTER = re.compile(
    rf"\s*(?:\^\s*\{{?[23]\}}?)?[\s.}})]*(?:$|[,;]|(?:/|\\cdot)\s*{OPEN}|{OPEN}?\s*(?:and|or)\b)"
)
_JOINED = re.compile(r"((?:^|\s*,\s*|\s+)(?:and|or)(?=\s|$)\s*|\s*,(?!\d{3}(?!\d))\s*)")
_NUMBER = re.compile(r"-?\.?\d")
# A joint behind a number in a text command that is followed by a number or by the text's end.
_GOES_ON = re.compile(r"(?:,|\b(?:and|or)\b)\s*(?:-?\.?\d|\Z)")
_SEPARATORS = re.compile(rf"[,;{AND}{OR}]\s*(?:[,;{AND}{OR}]\s*)+")
# x=1orx=2
_GLUED = re.compile(
    r"(?<=[\d)}\]])(or|and)(?=[A-Za-z](?:_\{?\w\}?|\([A-Za-z]\))?\s*(?:[=<>]|\\(?:le|ge|ne|in)\b))"
)
# `tall` in `5 feet tall`, which without a word before it would be a product of variables.
_SHORT_AFTER_WORD = re.compile(
    rf"{CLOSE}\s+(?=[a-z]*[aeiou])([a-z]{{3,4}})(?=\s*(?:$|[.,;)}}]|{OPEN}))"
)
_ARTICLE_AFTER_OF = re.compile(rf"(?<=\bof){CLOSE}\s+(an?)\s+{OPEN}")  # 3/4 of a mile
# Words behind a number that answer 'how many more?' or 'how many times?', and do not change it.
_COMPARED = re.compile(
    rf"(?<=[\d}}])\s*{OPEN}(?:(?:more|fewer|less)\b(?P<rest>[^{CLOSE}]*)|times(?: as [^{CLOSE}]*)?)"
    rf"{CLOSE}[\s.}}]*\Z"
)
# A number with a variable, and perhaps more variables and commands of LaTeX, but no word.
_MULTIPLE = re.compile(
    r"-?\d+(?:\.\d+)?(?P<letter>[a-z])(?![A-Za-z])(?:\\[A-Za-z]+|(?<![A-Za-z])[a-z](?![A-Za-z])"
    r"|[^A-Za-z\\])*+"
)
_TERM_AFTER = re.compile(r"[a-z]\s*[-+=]")
_HYPHEN = re.compile(rf"(?<=[A-Za-z]){CLOSE}\s*-\s*{OPEN}(?=[A-Za-z])")


def is_changed(before: str) -> bool:
    """Whether the words before a number deny it or compute with it, as `not` and `half of` do."""
    last = " ".join(before.lower().split()[-4:])
    return bool(_DENIALS.search(last) or _APPLIED.search(last))


def is_word(run: str) -> bool:
    """Whether a bare run of letters is a word and not a product of variables.

    A run with an `o` is a word, since `o` names no variable. So is a run with several capitals such
    as `AB`, the name of a segment or a polygon.
    """
    low = run.lower()
    return len(run) > 4 or low in _SHORT or "o" in low or sum(c.isupper() for c in run) > 1


def mark_words(s: str) -> str:
    """Mark words, `and` and `or` as `marks.py` describes; drop `\\text` around mathematics."""
    s = _GLUED.sub(r" \1 ", s)
    s = re.sub(r"\{\s*(and|or)\s*\}", lambda m: f" {_JOINERS[m[1]]} ", s)
    merged = _HYPHEN.sub("-", _RUN.sub(_mark_one, s))
    merged = _ARTICLE_AFTER_OF.sub(r" \1 ", _SHORT_AFTER_WORD.sub(rf" \1{CLOSE}", merged))
    merged = re.sub(rf"{CLOSE}\s*{OPEN}", " ", merged)
    merged = _SEPARATORS.sub(lambda m: f"{_joint_of(m.group())} ", merged)
    return merged.replace(f"{OPEN}{CLOSE}", "")


def _joint_of(text: str) -> str:
    """The mark or comma for the text between two items.

    It is OR or AND if the text has this mark or the word for it, else a comma.
    """
    return next((m for name, m in {OR: OR, AND: AND, **_JOINERS}.items() if name in text), ",")


def _mark_one(match: re.Match[str]) -> str:
    run, inner = match.group(), match.group(1)
    if run[0] == "\\":
        return run
    if inner is not None:
        before = match.string[max(0, match.start() - 12) : match.start()]
        if inner in units.LETTERS and (
            _UNIT_BEFORE.search(before)
            or _AMOUNT_BEFORE.search(before)
            and _UNIT_AFTER.match(match.string, match.end())
        ):
            return f"{OPEN}{inner}{CLOSE}"
        # A space separates the text from a command before it.
        return " " * before[-1:].isalpha() + _mark_text(inner)
    before = match.string[max(0, match.start() - 2) : match.start()].strip()
    if run == "min" and before[-1:].isdigit() and not match.string.startswith("(", match.end()):
        return f"{OPEN}{run}{CLOSE}"  # minutes
    if run in _PLAIN_COMMANDS:
        return f"\\{_PLAIN_COMMANDS[run]} "
    if run.lower() in _PERCENT:
        return "%"
    if run.lower() in _JOINERS:
        return f" {_JOINERS[run.lower()]} "
    if len(run) == 2 and run.islower() and run not in units.NAMES and _is_product(match):
        return run
    is_noun = _COUNTED.match(match.string, match.start())
    return f"{OPEN}{run}{CLOSE}" if is_noun or "." in run or "/" in run or is_word(run) else run


def _is_product(match: re.Match[str]) -> bool:
    """Whether two bare letters that spell a word are variables, as in `v+at` and `2 at^2`.

    They are if the sign of a formula stands on one side, and on the other a sign or a number, or
    nothing.
    """
    before = match.string[: match.start()].rstrip()[-1:]
    rest = match.string[match.end() :]
    if not before and re.match(r"\s+[-+]", rest):  # is -5
        return False
    after = rest.lstrip()[:1]
    if before not in "+-*/=^({)}0123456789" or after not in "+-*/=^_)}":  # '' is in both
        return False
    return bool(after or before and before in "+-*/=^({")


def _mark_text(inner: str) -> str:
    """The contents of a text command: unchanged if they are mathematics, else marked as words."""
    inner = inner.replace("~", " ")
    core = inner.strip()
    if not core:
        return " "
    if core.lower() in _PERCENT:
        return "%"
    if core in _PLAIN_COMMANDS and core not in units.NAMES:
        return f"\\{_PLAIN_COMMANDS[core]} "
    if re.fullmatch(r"[A-Za-z]+\s*/\s*[A-Za-z]+\s*(?:\^\{?\d\}?)?", core):
        return f"{OPEN}{core}{CLOSE}"
    if core == "e":
        return " e "  # 2\mathrm{e}-1 is no power of ten
    if re.fullmatch(r"[A-Za-z]", core):
        # A letter in \text is a unit if there is also a space in the \text.
        return f"{OPEN}{core}{CLOSE}" if inner != core and core in units.LETTERS else core
    multiple = _MULTIPLE.fullmatch(core)
    if multiple and (multiple["letter"] not in units.LETTERS or _TERM_AFTER.search(core)):
        return core if core.isalnum() else f"{{{core}}}"  # \mathbf{2k}, but not \text{5m}
    amount = re.fullmatch(r"(-?[\d.,/:]*\d)\s*((?!(?:st|nd|rd|th)\b)[A-Za-z].*)", core)
    if amount and not _GOES_ON.search(amount[2]):
        return f"{amount[1]}{OPEN}{amount[2]}{CLOSE}"
    choices = re.findall(r"\([A-Za-z]+\)", core)
    if len(choices) == 1 and core.startswith(choices[0]):
        return f"{OPEN}{core}{CLOSE}"
    if not re.search(r"[A-Za-z]{2}|[A-Za-z]\.", core) and "\\" not in core:
        # \text{13}, \text{A5}, \text{ , }: no word in it.
        if "," in core:
            return f"{core} "
        return core if core.isalnum() or len(core) == 1 else f"{{{core}}}"
    parts = _JOINED.split(core)  # items, and the joints between them
    if len(parts) == 1:
        return f"{OPEN}{core}{CLOSE}"
    marked = (f" {_joint_of(p)} " if i % 2 else _mark_item(p) for i, p in enumerate(parts) if p)
    return "".join(marked)


def _mark_item(item: str) -> str:
    """An item of a list in a text command: a number stays one, as in `\\text{3 and 4 apples}`."""
    return _mark_text(item) if _NUMBER.match(item) else f"{OPEN}{item}{CLOSE}"


def changes_meaning(text: str) -> bool:
    """Whether words beside a number change its value: `not 5`, `at least 5`, `5 to 6`."""
    text = _COMPARED.sub(lambda m: f"{OPEN}{m['rest'] or ''}", text)
    texts = (re.sub(r"\^\{?-?\d\}?", "", t) for t in re.findall(rf"{OPEN}([^{CLOSE}]*)", text))
    # The exponent of a unit does not change the value.
    return any(_CHANGES.search(t) or _DENIALS.search(t) for t in map(str.casefold, texts))


def denies(text: str) -> bool:
    """Whether a text denies something, as `not` does. `NO` does not: it is a segment's name."""
    said = text.replace(f"{OPEN}NO{CLOSE}", "")
    return OPEN in said and _DENIALS.search(said.casefold()) is not None


def text_key(text: str) -> str:
    """A text in lower case, without leading article, spaces, and punctuation at the ends."""
    bare = re.sub(rf"[\s{OPEN}{CLOSE}{{}}]+", " ", text).strip(" .,;:!?\"'()").casefold()
    key = re.sub(r"^(?:an?|the) (?=\S{2})", "", bare).replace(" ", "")
    return _SYNONYMS.get(key, key)


def same_words(a: str, b: str) -> bool:
    """Whether two texts have the same `text_key`; False if that key is empty."""
    key = text_key(a)
    return bool(key) and key == text_key(b)
