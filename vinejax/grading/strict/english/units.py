"""Compares the words beside numbers: units of measure, and words such as `ways` and `north`."""

import re

from vinejax.grading.strict.marks import CLOSE, OPEN

# Each unit of measure, and its other spellings.
_SPELLINGS = """
cm centimeter centimeters centimetre centimetres cms;
mm millimeter millimeters millimetre millimetres; m meter meters metre metres;
km kilometer kilometers kilometre kilometres kms; in inch inches; ft foot feet;
yd yard yards yds; mi mile miles; kg kilogram kilograms kgs; g gram grams; lb pound pounds lbs;
oz ounce ounces; s second seconds sec secs; min minute minutes mins; h hour hours hr hrs;
day days; week weeks; month months; year years yr yrs; l liter liters litre litres;
ml milliliter milliliters; gal gallon gallons; quart quarts; pint pints; cup cups;
tablespoon tablespoons; teaspoon teaspoons; ton tons; tonne tonnes; acre acres;
hectare hectares; horsepower; mol mole moles; ohm ohms; pascal pascals; calorie calories;
dollar dollars usd bucks; cent cents; euro euros eur; yen jpy; rupee rupees;
hz hertz; newton newtons; joule joules; watt watts;
volt volts; ampere amperes amp amps; kelvin kelvins; tesla teslas; celsius centigrade;
fahrenheit; degree degrees deg; radian radians rad; am a.m. a.m; pm p.m. p.m
"""
NAMES = {
    name: unit for unit, *names in map(str.split, _SPELLINGS.split(";")) for name in [unit, *names]
}
NAMES |= {"mph": "mi/h", "kph": "km/h", "kmh": "km/h"}
_PREFIXES = """
nano n -9; micro μ -6; milli m -3; centi c -2; deci d -1; kilo k 3; mega M 6; giga G 9
"""
# Symbol and names of each unit that takes these prefixes
_PREFIXED = """
m meter metre; g gram; s second; L liter litre; l liter litre; Hz hertz; N newton; J joule;
W watt; V volt; A ampere amp; Pa pascal; cal calorie
"""
_MULTIPLES = [  # symbol, name and unit with a prefix; unit without it; power of ten
    (letter + symbol, prefix + name, NAMES.get(prefix + names[0], prefix + names[0]), unit, power)
    for symbol, *names in map(str.split, _PREFIXED.split(";"))
    for name, unit in ((name, NAMES[name]) for name in names)
    for prefix, letter, power in map(str.split, _PREFIXES.split(";"))
]
NAMES |= {name + s: unit for _, name, unit, _, _ in _MULTIPLES for s in ("", "s")}
MULTIPLES = {unit: (base, int(power)) for _, _, unit, base, power in _MULTIPLES}
# Case counts in these symbols, and outside of \text most of them are products of variables: mg, ms.
_SYMBOLS = {symbol: unit for symbol, _, unit, _, _ in _MULTIPLES}
_SYMBOLS |= {"Pa": "pascal", "cal": "calorie", "kWh": "kilowatt/h", "hp": "horsepower"}
_SYMBOLS |= {"qt": "quart", "tsp": "teaspoon", "tbsp": "tablespoon"}
_LETTERS = re.compile(r"[^\W\d_]+")
_MICRO = re.compile(r"\\mu\s*")
_CAPITALS = {"N": "newton", "J": "joule", "W": "watt", "V": "volt", "K": "kelvin", "A": "ampere"}
_CAPITALS |= {"T": "tesla", "C": "celsius", "F": "fahrenheit", "L": "l"}
LETTERS = {*"mgslh", *_CAPITALS}  # units of one letter
_MARKERS = re.compile(rf"[{OPEN}{CLOSE}{{}}\\]")
_RATE = re.compile(r"\s*(?:/|per\b)")
_POWERS = {"square", "squared", "sq", "cubic", "cubed", "cu"}
_FILLERS = re.compile(r"\b(?:the|an?(?!\.)|of|about|approximately|each|total)\b")
_EMPTY_WORDS = set(
    "in per unit exact exactly only roughly around approx distinct different".split()
)
_PLURALS = {"people", "men", "women", "children", "mice", "dice"}  # without an s


def unit_key(text: str) -> str:
    """The standard spelling of a unit; '' for counted things and other descriptions."""
    bare = _MARKERS.sub(" ", text).strip()
    low = _CAPITALS.get(bare) or _plain(text)
    power = "2" if re.search(r"square|\bsq\b|\^ *2", low) else ""
    power = "3" if re.search(r"cubic|\bcu\b|\^ *3", low) else power
    spoken = re.findall(r"[a-z]+(?:\.m\b\.?)?", low)
    if len(set(spoken) - _POWERS) > 1:
        spoken = [w for w in spoken if w != "in"]  # beside other words `in` is no inch
    names = [NAMES[w] for w in spoken if w in NAMES]
    if len(names) > 1 and names[-1] in ("celsius", "fahrenheit"):
        names = names[-1:]  # degrees Celsius
    rate = "/" if _RATE.match(low) else ""  # 5/day and 5 per day are not 5 days
    return rate + "/".join(names) + power if names else ""


def same_unit(a: str, b: str) -> bool:
    """False only for two different units; missing units and counted nouns are ignored."""
    ka, kb = unit_key(a), unit_key(b)
    return not ka or not kb or ka == kb


def same_description(a: str, b: str) -> bool:
    """False if words beside two numbers contradict, as in `5 miles north` and `5 miles south`.

    Units are ignored, and so are counted nouns, which are plurals: `210 ways` and
    `210 combinations` are the same number.
    """
    said_a, said_b = _description(a), _description(b)
    return said_a <= said_b or said_b <= said_a


def _description(text: str) -> set[str]:
    return {w for w in _spoken(text) if w not in _PLURALS and not re.search(r"[^s]s$", w)}


def nouns(text: str) -> frozenset[str]:
    """The things that a number counts: the words beside it, in the singular, without units."""
    return frozenset(re.sub(r"(?<=[^s])s$", "", w) for w in _spoken(text))


def _spoken(text: str) -> set[str]:
    spoken = re.findall(r"[a-z'][a-z'.-]*", _plain(text))
    return {w for w in spoken if w not in NAMES and w not in _POWERS | _EMPTY_WORDS}


def _plain(text: str) -> str:
    """A text in lower case, without articles, words such as `about`, and the marks of words.

    Symbols such as kW are replaced by their units.
    """
    named = _LETTERS.sub(lambda m: _SYMBOLS.get(m[0], m[0]), _MICRO.sub("μ", text))
    return _FILLERS.sub("", _MARKERS.sub(" ", named).casefold())
