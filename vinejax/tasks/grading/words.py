"""Words in answers: text answers, choices, units and what may stand beside a number."""

import re

OPEN, CLOSE = "\ue000", "\ue001"

# Names that are mathematics even without a backslash.
FUNCTIONS = {"sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "exp", "log", "ln"}
FUNCTIONS |= {"arcsin", "arccos", "arctan", "max", "min", "gcd", "lcm", "lg"}
_PLAIN_COMMANDS = {
    **{name: name for name in FUNCTIONS | {"sqrt", "pi", "theta", "alpha", "beta", "infty"}},
    **dict.fromkeys(["infinity", "Infinity", "inf", "oo"], "infty"),
}
_PERCENT = {"percent", "percentage", "percents"}
_JOINERS = {"and", "or"}
# Short words that no one means as a product of variables.
_SHORT = set(
    """all am any are area as at base be bits black blue but by byte bytes can cent cents cube
    cubic day days dime dimes each east edge even face fall feet few five four game games girl
    girls gray grey half has he her high him his if in inch inches is it its kite least left
    less line man many me mean men mile miles more most my near next nine only pair pairs past
    peak per pink pm rate ray real red rise same set sets side sides six sum ten the them then
    they this tie true unit units up us way ways we week weeks west win with year
    years yes""".split()
)

_UNIT_ALIASES = {
    "cm": "centimeter centimeters centimetre centimetres cms",
    "mm": "millimeter millimeters millimetre millimetres",
    "m": "meter meters metre metres",
    "km": "kilometer kilometers kilometre kilometres kms",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yard yards yds",
    "mi": "mile miles",
    "kg": "kilogram kilograms kgs",
    "g": "gram grams",
    "lb": "pound pounds lbs",
    "oz": "ounce ounces",
    "s": "second seconds sec secs",
    "min": "minute minutes mins",
    "h": "hour hours hr hrs",
    "day": "days",
    "week": "weeks",
    "month": "months",
    "year": "years yr yrs",
    "l": "liter liters litre litres",
    "ml": "milliliter milliliters",
    "gal": "gallon gallons",
    "dollar": "dollars usd bucks",
    "cent": "cents",
    "euro": "euros eur",
    "yen": "jpy",
    "rupee": "rupees",
    "celsius": "centigrade",
    "fahrenheit": "",
    "degree": "degrees deg",
    "radian": "radians rad",
    "am": "a.m. a.m",
    "pm": "p.m. p.m",
}
_UNITS = {w: unit for unit, names in _UNIT_ALIASES.items() for w in [unit, *names.split()]}
_UNITS |= {"mph": "mi/h", "kph": "km/h", "kmh": "km/h"}
_SHORT |= {"sq", "cu"} | {name for name in _UNITS if len(name) > 1 and name.isalpha()}
_UNIT_LETTERS = set("mgslhNJWVKCAFTL")
EMPTY = {"nosolution", "nosolutions", "norealsolution", "norealsolutions", "emptyset", "nullset"}
REALS = {"allrealnumbers", "allreals", "realnumbers", "allrealnumber", "allrealvalues"}
_SYNONYMS = {"dne": "doesnotexist", "doesn'texist": "doesnotexist", "undef": "undefined"}
_SYNONYMS |= {"infinitelymanysolutions": "infinitelymany"}
_CHANGES = re.compile(
    r"\d|\b(?:not?|non|none|never|negative|minus|less|fewer|more|greater|least|most|than|under|over"
    r"|below|above|between|without|except|times|plus|half|double|twice|to|if)\b"
)
_FILLERS = re.compile(r"\b(?:the|an?(?!\.)|of|about|approximately|each|total)\b")

_RUN = re.compile(
    r"(?<=[\d} ])(?:km|cm|ft|mi|m)/(?:hr|sec|min|s|h)(?![A-Za-z])(?:\^\{?2\}?)?|"
    rf"\\(?:begin|end)\s*\{{\w+\*?\}}|\\[A-Za-z]+|{OPEN}([^{CLOSE}]*){CLOSE}"
    r"|(?<![A-Za-z])(?:[ap]\.m\b\.?)|[A-Za-z]{2,}"
)


_UNIT_BEFORE = re.compile(rf"{CLOSE}\s*(?:/|\\cdot)\s*$")  # \text{ m}/\text{s}
_HYPHEN = re.compile(rf"(?<=[A-Za-z]){CLOSE}\s*-\s*{OPEN}(?=[A-Za-z])")


def is_word(run: str) -> bool:
    """Whether a bare run of letters is a word and not a product of variables.

    No one names a variable o; products of capitals are names of segments and polygons.
    """
    low = run.lower()
    return len(run) > 4 or low in _SHORT or "o" in low or sum(c.isupper() for c in run) > 1


def mark(s: str) -> str:
    """Bare words into OPEN..CLOSE, text that is mathematics out of it, 'and' and 'or' to commas."""
    s = re.sub(r"\{\s*(?:and|or)\s*\}", " , ", s)
    merged = _HYPHEN.sub("-", _RUN.sub(_mark_one, s))
    merged = re.sub(rf"{CLOSE}\s*{OPEN}", " ", merged)
    merged = re.sub(r",\s*(?:,\s*)+", ", ", merged)
    return merged.replace(f"{OPEN}{CLOSE}", "")


def _mark_one(match: re.Match[str]) -> str:
    run, inner = match.group(), match.group(1)
    if run[0] == "\\":
        return run
    if inner is not None:
        before = match.string[max(0, match.start() - 12) : match.start()]
        if inner in _UNIT_LETTERS and _UNIT_BEFORE.search(before):
            return f"{OPEN}{inner}{CLOSE}"
        # Apart from a command that stands before it.
        return " " * before[-1:].isalpha() + _mark_text(inner)
    before = match.string[max(0, match.start() - 2) : match.start()].strip()
    if run == "min" and before[-1:].isdigit() and not match.string.startswith("(", match.end()):
        return f"{OPEN}{run}{CLOSE}"  # minutes
    if run in _PLAIN_COMMANDS:
        return f"\\{_PLAIN_COMMANDS[run]} "
    if run.lower() in _PERCENT:
        return "%"
    if run.lower() in _JOINERS:
        return " , "
    return f"{OPEN}{run}{CLOSE}" if "." in run or "/" in run or is_word(run) else run


def _mark_text(inner: str) -> str:
    """The contents of a text command: mathematics if it is, otherwise text items."""
    inner = inner.replace("~", " ")
    core = inner.strip()
    if core.lower() in _PERCENT:
        return "%"
    if core in _PLAIN_COMMANDS and core not in _UNITS:
        return f"\\{_PLAIN_COMMANDS[core]} "
    if re.fullmatch(r"[A-Za-z]+\s*/\s*[A-Za-z]+\s*(?:\^\{?\d\}?)?", core):
        return f"{OPEN}{core}{CLOSE}"
    if re.fullmatch(r"[A-Za-z]", core):
        # A letter in \text is a unit if it stands off from what is before it.
        return f"{OPEN}{core}{CLOSE}" if inner != core and core in _UNIT_LETTERS else core
    amount = re.fullmatch(r"(-?[\d.,/:]*\d)\s*((?!(?:st|nd|rd|th)\b)[A-Za-z].*)", core)
    if amount:
        return f"{amount[1]}{OPEN}{amount[2]}{CLOSE}"
    choices = re.findall(r"\([A-Za-z]+\)", core)
    if len(choices) == 1 and core.startswith(choices[0]):
        return f"{OPEN}{core}{CLOSE}"
    if not re.search(r"[A-Za-z]{2}|[A-Za-z]\.", core) and "\\" not in core:
        # \text{13}, \text{A5}, \text{ , }: no word in it.
        return (
            f"{core} "
            if "," in core
            else core
            if core.isalnum() or len(core) == 1
            else f"{{{core}}}"
        )
    items = re.split(r"(?:^|\s*,\s*|\s+)(?:and|or)(?:\s+|$)|\s*,\s*", core)
    return " , ".join(f"{OPEN}{item}{CLOSE}" if item else "" for item in items)


def changes_meaning(text: str) -> bool:
    """Whether words beside a number make another number of it: `not 5`, `at least 5`, `5 to 6`."""
    said = (re.sub(r"\^\{?-?\d\}?", "", t) for t in re.findall(rf"{OPEN}([^{CLOSE}]*)", text))
    return any(_CHANGES.search(t.casefold()) for t in said)  # a power of a unit is no number


def text_key(text: str) -> str:
    """Text for comparison: articles, case, spaces and punctuation at the ends do not matter."""
    bare = re.sub(rf"[\s{OPEN}{CLOSE}{{}}]+", " ", text).strip(" .,;:!?\"'()").casefold()
    key = re.sub(r"^(?:an?|the) (?=\S{2})", "", bare).replace(" ", "")
    return _SYNONYMS.get(key, key)


def label(source: str) -> str:
    """The `(B)` before what a choice says: `(B) 12`; '' without one."""
    match = re.match(rf"[{OPEN}\s]*(\([A-J]\))[{CLOSE}\s]*\S|([A-J]\))\Z|([A-J][.:])\s+\S", source)
    return next(filter(None, match.groups())) if match else ""


def choice(text: str) -> tuple[str, str] | None:
    """(letter, rest) of `(C)`, `C`, `(C) blue`; None if it is no multiple choice answer."""
    bare = re.sub(rf"[{OPEN}{CLOSE}{{}}]", "", text).strip()
    match = re.fullmatch(r"\(([A-Za-z])\)\s*(.*)|([A-Z])[.:)]\s*(.*)|([A-Za-z])", bare)
    if not match:
        return None
    letter = match.group(1) or match.group(3) or match.group(5)
    return letter, text_key(match.group(2) or match.group(4) or "")


def same_words(a: str, b: str) -> bool:
    """Equal texts with something in them."""
    return bool(text_key(a)) and text_key(a) == text_key(b)


def same_text(a: str, b: str) -> bool:
    """Equal words, or the same choice with and without its wording."""
    if same_words(a, b):
        return True
    ca, cb = choice(a), choice(b)
    if ca and cb:
        return ca[0] == cb[0] and (not ca[1] or not cb[1] or ca[1] == cb[1])
    named, other = (ca, b) if ca else (cb, a)
    return bool(named and named[1]) and named[1] == text_key(other) if named else False


def unit_key(text: str) -> str:
    """A unit of measure in one spelling; '' for counted things and other descriptions."""
    low = _FILLERS.sub("", re.sub(rf"[{OPEN}{CLOSE}{{}}\\]", " ", text).casefold())
    power = "2" if re.search(r"square|\bsq\b|\^ *2", low) else ""
    power = "3" if re.search(r"cubic|\bcu\b|\^ *3", low) else power
    spoken = re.findall(r"[a-z]+(?:\.m\b\.?)?", low)
    if len(set(spoken) - {"square", "sq", "cubic", "cu"}) > 1:
        spoken = [w for w in spoken if w != "in"]  # beside other words it is no inch
    found = [_UNITS[w] for w in spoken if w in _UNITS]
    if len(found) > 1 and found[-1] in ("celsius", "fahrenheit"):
        found = found[-1:]  # degrees Celsius
    return "/".join(found) + power if found else ""


def same_unit(a: str, b: str) -> bool:
    """False only for two different measures: a missing unit, or a counted noun, is no error."""
    ka, kb = unit_key(a), unit_key(b)
    return not ka or not kb or ka == kb
