"""Works on LaTeX as text: gives each command one spelling.

`clean_answer` rewrites an answer in the small dialect that the parsers of this package read: no
delimiters, sizes or spacing commands, `\\frac` for every kind of fraction, sets in
`SET_OPEN`..`SET_CLOSE`, and words, with or without `\\text`, in `OPEN`..`CLOSE` (marks.py).
Every function takes roughly linear time and never raises.
"""

import re
import unicodedata
from fractions import Fraction

from vinejax.grading.strict import marks, numbers
from vinejax.grading.strict.boxes import BRACE, group_end, inside_boxes
from vinejax.grading.strict.english import quantities, units, words
from vinejax.grading.strict.marks import AND, CLOSE, OPEN, OR, ROW, SET_CLOSE, SET_OPEN

_COMMAND_OF = r"""
    times ×✕, cdot ·⋅∙, pi π, sqrt √, infty ∞, le ≤≦⩽, ge ≥≧⩾, ne ≠, approx ≈, pm ±, mp ∓,
    cup ∪, cap ∩, in ∈, emptyset ∅Ø, ldots …⋯, setminus ∖, lfloor ⌊, rfloor ⌋, lceil ⌈,
    rceil ⌉, land ∧, lor ∨, equiv ≡, angle ∠, triangle △, alpha α, beta β, gamma γ, delta δ,
    epsilon εϵ, zeta ζ, eta η, theta θϑ, iota ι, kappa κ, lambda λ, mu μµ, nu ν, xi ξ,
    rho ρϱ, sigma σς, tau τ, upsilon υ, phi φϕ, chi χ, psi ψ, omega ω, Gamma Γ, Delta Δ∆,
    Theta Θ, Lambda Λ, Xi Ξ, Sigma Σ, Phi Φ, Psi Ψ, Omega ΩΩ, ell ℓ"""
_INVISIBLE = "\u200b\u200c\u200d\u200e\u200f\u061c\u2060\u2066\u2067\u2068\u2069\ufeff"
_UNICODE = {
    **{c: f"\\{row.split()[0]} " for row in _COMMAND_OF.split(",") for c in row.split()[1]},
    **{c: rf"\mathbb{{{letter}}}" for c, letter in zip("ℝℕℤℚℂ", "RNZQC", strict=True)},
    **dict.fromkeys("−–—‐‑﹣", "-"),
    **dict.fromkeys(_INVISIBLE + "\u202a\u202b\u202c\u202d\u202e", ""),
    **dict.fromkeys("°º˚", r"^\circ "),
    **dict.fromkeys(marks.ALL, ""),
    **dict.fromkeys("÷∕⁄", "/"),
    **dict.fromkeys("‘’′", "'"),
    **dict.fromkeys("⟨〈", "("),
    **dict.fromkeys("⟩〉", ")"),
    **dict.fromkeys("，、", ","),
    "∛": r"\sqrt[3] ",
    "∜": r"\sqrt[4] ",
    "∣": "|",
    "∗": "*",
    "∶": ":",
    "。": ".",
    "％": "%",
    "″": "''",
}
for _character in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒":
    _part = Fraction(unicodedata.numeric(_character)).limit_denominator(10)
    _UNICODE[_character] = rf"\frac{{{_part.numerator}}}{{{_part.denominator}}}"
for _code in range(0x1D400, 0x1D800):  # mathematical letters and digits: 𝑥, 𝟐
    _letter = unicodedata.normalize("NFKC", chr(_code))
    _UNICODE[chr(_code)] = _UNICODE.get(_letter, _letter)
# The digit 0 of scripts: Arabic, Persian, Devanagari, Bengali, Gurmukhi, Gujarati, Tamil, Telugu,
# Kannada, Malayalam, Thai, Lao, Burmese and Khmer
for _zero in "٠۰०০੦૦௦౦೦൦๐໐၀០":
    _UNICODE |= {chr(ord(_zero) + digit): str(digit) for digit in range(10)}
_TRANSLATE = str.maketrans(
    {**_UNICODE, **{chr(0xFEE0 + c): chr(c) for c in range(0x21, 0x7F) if c not in (0x2C, 0x25)}}
)
# Raised and lowered characters, as in x², 2ⁿ⁺¹, log₂ 8 and ¹⁄₂.
_UP, _DOWN = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱˣᵃᵇᶜᵈᵉᵏᵐᵖʳˢᵗʸᶻ", "₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙᵢₓₐₑⱼₖₘₚᵣₛₜ"
_SCRIPT = re.compile(f"([{_UP}]+)[⁄∕/]([{_DOWN}]+)|([{_UP}]+)|([{_DOWN}]+)")
_PLAIN = str.maketrans(_UP + _DOWN, "0123456789+-()nixabcdekmprstyz" + "0123456789+-()nixaejkmprst")
# A list of quoted texts as in JSON or Python, where a backslash may be doubled.
_QUOTED = r"(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')"
_JSON_LIST = re.compile(rf"\s*\[\s*{_QUOTED}(?:\s*,\s*{_QUOTED})*\s*\]\s*")

# Each command, followed by the synonyms that are replaced by it.
_SYNONYMS = rf"""
\frac dfrac tfrac cfrac sfrac xfrac nicefrac; \binom dbinom tbinom; \le leq leqslant leqq;
\ge geq geqslant geqq; \ne neq; < lt; > gt; | lvert rvert vert mid; [ lbrack; ] rbrack; * ast;
/ div; \emptyset varnothing oslash; \cup bigcup; ( langle; ) rangle; \approx simeq thickapprox;
^\circ degree degrees; \overline bar; \ldots dots cdots dotsc dotsb ldots;
\setminus backslash smallsetminus; \phi varphi; \epsilon varepsilon; \theta vartheta;
 {SET_OPEN} lbrace; {SET_CLOSE} rbrace; {OR} lor vee;
{AND} land wedge
"""
_WITHOUT_MEANING = """
    left right bigl bigr Bigl Bigr big Big bigg Bigg biggl biggr Biggl Biggr limits nolimits vec hat
    displaystyle textstyle scriptstyle overrightarrow tilde boldsymbol bm mathcal mathfrak rm bf it
    sf tt thinspace negthinspace nonumber notag hspace ensuremath tiny scriptsize footnotesize small
    normalsize large Large LARGE huge Huge checkmark ldotp blacksquare square qed"""
_ALIASES = {name: row.split()[0] for row in _SYNONYMS.split(";") for name in row.split()[1:]}
_ALIASES |= dict.fromkeys(["quad", "qquad", "newline", "space"], " ")
_ALIASES |= dict.fromkeys(_WITHOUT_MEANING.split(), "")
_COMMAND = re.compile(r"\\([A-Za-z]+)|\\([,;:!> ~{}%$&#|]|\n|\Z)")
_SYMBOLS = {"{": SET_OPEN, "}": SET_CLOSE, "%": "%", "$": "\\$", "&": ",", "#": "", "|": "|"}
_SEPARATORS = re.compile(r"(?<=\d)\s*(?:\{,\}\s*(?:\\!)?|,\s*\\!|\\,|,\\,)\s*(?=\d{3}(?!\d))")
_SPACED = re.compile(r"(?<![\d.,])\d{1,3}(?: \d{3})+(?:\.\d+)?(?![\d.]|\s*[/\d])")
# Normalised data sets lose one of the two backslashes of a row break: `3\1\-2`.
_ROWS = re.compile(r"\\\\(?:\[[^\]]*\])?|\\cr\b|\\(?=[-+\d.&])|\\(?=[A-Za-z](?![A-Za-z]))")
_OPENING, _CLOSING = "([{" + SET_OPEN + OPEN, ")]}" + SET_CLOSE + CLOSE
# Brackets, and characters that a separator may start with.
_BRACKETS = re.compile(
    rf"[()\[\]{{}}{SET_OPEN}{SET_CLOSE}{OPEN}{CLOSE}\\{marks.SEPARATORS}=<>!&{ROW}:]"
)
_ASIDE = re.compile(rf"(?<=[\d}})])\s*\(({OPEN}[^{CLOSE}()]*{CLOSE})\.?\)[\s.]*$")
_DELIMITERS = re.compile(r"\\[()\[\]]")
_PHANTOM = re.compile(r"\\[hv]?phantom\s*(?:\{[^{}]*\}|.)|\\[hv]space\*?\s*\{[^{}]*\}")
_COLOUR = re.compile(r"\\(?:text)?color\s*(?:\[\w*\])?\s*\{[^{}]*\}")
_NO_DELIMITER = re.compile(r"\\(?:left|right|bigl|bigr|Bigl|Bigr)\s*\.")
# A set of numbers, except for newtons right after a number: 5\\,\\mathrm{N}.
_NUMBER_SET = re.compile(
    r"((?:[\d}]|\\pi)(?:\s|~|\\[,;: !])*\\mathrm\s*\{N\})"
    r"|\\(?:mathbf|mathrm|bm|boldsymbol|Bbb|mathds)\s*(?:\{([RZNQ])\}|([RZNQ])\b)"
)
_EMPHASIS = re.compile(r"\s*(\*\*|\*|__|`)([^*`]*)\1\s*[.]?\s*", re.DOTALL)
_CUP_LETTER = re.compile(r"(?<=[\])])\s*U\s*(?=(?:\\left\s*)?[\[(])")
# ]1,2] and [1,2[, as written in France, with endpoints that contain no brackets.
_FRENCH_OPEN = re.compile(r"(^|\\cup|\\in|=|:)(\s*(?:\\left\s*)?)\](?=[^\[\]()]*[,;])")
_FRENCH_CLOSE = re.compile(r"([(\[][^\[\]()]*[,;][^\[\]()]*)\[(?=\s*(?:$|\\cup))")
# Empty braces that are not a command's argument: {}5, 45{}^\circ
_EMPTY_GROUP = re.compile(
    r"((?:\\(?:frac|binom|sqrt|overline|mathbb|dot)(?![A-Za-z])|[\^_}\]])\s*\{\s*\})|\{\s*\}"
)
_DEGREE = r"(?:\\degree(?![A-Za-z])|[°º˚])"
_RAISED_DEGREE = re.compile(rf"\^\s*(?:{_DEGREE}|\{{\s*{_DEGREE}\s*\}})")  # 45^\degree, 45^{°}
_ONE_LETTER = re.compile(r"(\\(?:math(?:bf|rm|it|sf)|text(?:bf|rm|it)?))\s+([A-Za-z])(?![A-Za-z])")
MAX_COMPOSED = 1000  # characters of a text whose accents are composed, in quadratic time
_LEAD = re.compile(
    rf"(?i)^[\s:{OPEN}]*(?:so |thus |hence |therefore,? )*(?:the )?(?:final )?"
    rf"(?:answer|result|solution)s?(?: is| are|:)*[\s{OPEN}{CLOSE}]*:?\s*"
)


def is_balanced(text: str) -> bool:
    """Whether all braces match, and the text has as many opening as closing brackets.

    Brackets need not be of the same kind, as in `[0, 1)`.
    """
    braces = brackets = 0
    for match in BRACE.finditer(text):
        braces += (match.group() == "{") - (match.group() == "}")
        if braces < 0:
            return False
    for character in clean_answer(text):
        brackets += (character in "([" + SET_OPEN) - (character in ")]" + SET_CLOSE)
    return braces == brackets == 0


def clean_answer(text: str) -> str:
    """Rewrite an answer in the parsers' dialect, which the module's docstring describes."""
    s = inside_boxes(text)
    if len(s) <= MAX_COMPOSED:
        s = unicodedata.normalize("NFC", s)  # a letter and an accent are one character
    if _JSON_LIST.fullmatch(s):
        s = ", ".join(map(_unquoted, re.findall(_QUOTED, s)))
    s = _RAISED_DEGREE.sub(r"^\\circ ", s)
    s = re.sub(r"[\s~]{2,}", " ", _SCRIPT.sub(_script, s).translate(_TRANSLATE))
    if r"\\begin" in s:
        s = s.replace("\\\\", "\\")  # escaped once too often
    elif r"\begin" not in s:
        s = re.sub(r"\\\\(?=[A-Za-z{}])", r"\\", s)
    s = re.sub(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", r"\\times ", s)
    s = _layout(quantities.plain_quantities(_SEPARATORS.sub("", s)))
    s = re.sub(r"\\([dtc]?frac|binom)\s+([A-Za-z])([A-Za-z])(?![A-Za-z])", r"\\\1{\2}{\3}", s)
    s = _DELIMITERS.sub(" ", _PHANTOM.sub("", s))
    s = _commands(s)
    s = re.sub(r"(?<!\\)\$", " ", s)
    s = s.replace("\\$", "")
    s = _EMPTY_GROUP.sub(lambda m: m.group(1) or " ", words.mark_words(_fonts(s)))
    s = _LEAD.sub("", s.replace("**", "^").replace("~", " "))
    if OPEN not in s:
        s = s.replace(CLOSE, "")  # `_LEAD` dropped the opening mark
    s = re.sub(r"\s+", " ", s)
    s = _SPACED.sub(lambda m: m.group().replace(" ", ""), s)
    return _trim(_ASIDE.sub(_aside, s))


def _aside(match: re.Match[str]) -> str:
    """The text that replaces words in brackets behind a number, as in `5 (five)` and `5 (cm)`.

    It is '' if the words repeat the number. A unit, or a word such as `approximately`, loses its
    brackets. All other words stay as they are.
    """
    said = quantities.spoken_number(match[1].strip(OPEN + CLOSE))
    if said is not None and said == numbers.read_rational(match.string[: match.start()].strip()):
        return ""
    return match.group() if units.nouns(match[1]) else f" {match[1]}"


def _unquoted(item: str) -> str:
    """The text of a quoted item of a JSON list."""
    item = item[1:-1]
    if not re.search(r"\\[A-Za-tv-z]", item.replace("\\\\", "")):
        item = item.replace("\\\\", "\\")
    return re.sub(r"\\u([\da-fA-F]{4})", lambda m: chr(int(m[1], 16)), item)


def _script(match: re.Match[str]) -> str:
    top, bottom, up, down = (group and group.translate(_PLAIN) for group in match.groups())
    return rf"\frac{{{top}}}{{{bottom}}}" if top else f"^{{{up}}}" if up else f"_{{{down}}}"


def _layout(s: str) -> str:
    """Drop colours and emphasis; write intervals, number sets and signs uniformly."""
    if match := _EMPHASIS.fullmatch(s):
        s = match.group(2)
    s = _NO_DELIMITER.sub("", _COLOUR.sub("", s))
    s = _NUMBER_SET.sub(lambda m: m[1] or rf"\mathbb{{{m[2] or m[3]}}}", s)
    s = _ONE_LETTER.sub(r"\1{\2}", s)
    s = re.sub(r"\\not\s*=", r"\\ne ", s).replace("+/-", "\\pm ")
    s = re.sub(r"(?<!\d)\.\.\.+|(?<=\d\s)\.\.\.+|(?<=,)\.\.\.+", r"\\ldots ", s)
    s = re.sub(r"-\s*(?=(?:\\left\s*)?\\\{)", r"\\setminus ", s)
    s = _CUP_LETTER.sub(r"\\cup ", s)
    return _FRENCH_CLOSE.sub(r"\1)", _FRENCH_OPEN.sub(r"\1\2(", s))


def _trim(s: str) -> str:
    """Drop punctuation at both ends, and braces around the whole text."""
    for _ in range(4):
        s = s.strip().rstrip(f"\\.,;: {AND}{OR}").lstrip(f"=, {AND}{OR}")
        if s.startswith("{") and group_end(s, 0) == len(s) - 1:
            s = s[1:-1]
    return s.strip()


def _commands(s: str) -> str:
    """Give synonymous commands one name; drop bracket sizes, spacing commands and escapes."""

    def in_one_spelling(match: re.Match[str]) -> str:
        name, symbol = match.groups()
        if name is None:
            return _SYMBOLS.get(symbol, " " if symbol in " \n:;,>" else "")
        alias = _ALIASES.get(name)
        if alias is None:
            return match.group()
        if alias[-1:].isalpha():
            alias += " "  # so that `\leq x` does not become `\lex`
        return alias

    first, last = s.find("\\begin"), s.rfind("\\end")
    if 0 <= first < last:
        s = s[:first] + _ROWS.sub(ROW, s[first:last]) + s[last:]
    return _COMMAND.sub(in_one_spelling, s)


_FONT = re.compile(
    r"\\(?:text|mbox|hbox|textbf|textit|textrm|textsf|texttt|textnormal|mathrm|mathbf|mathit|"
    r"mathsf|mathtt|operatorname\*?|emph|underline)\s*(\{)|\\?[{}]"
)


def _fonts(s: str) -> str:
    """Replace `\\text{..}` and the like by OPEN..CLOSE; nested commands become one pair."""
    out, stack, inside, last = [], [], 0, 0
    for match in _FONT.finditer(s):
        out.append(s[last : match.start()])
        last, token = match.end(), match.group()
        if match.group(1):
            out.append("" if inside else OPEN)
            stack.append(True)
            inside += 1
        elif token == "{":
            stack.append(False)
            out.append(token)
        elif token == "}" and stack and stack.pop():
            inside -= 1
            out.append("" if inside else CLOSE)
        else:
            out.append(token)
    out.append(s[last:])
    return "".join(out) + (CLOSE if inside else "")


def split_outside_brackets(s: str, separator: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """The parts of `s` and the separators: matches of the pattern outside every bracket.

    Any closing bracket closes any opening bracket, as in half-open intervals.
    """
    parts, separators, depth, start, at = [], [], 0, 0, 0
    while match := _BRACKETS.search(s, at):
        at = match.end()
        if match.group() in _OPENING:
            depth += 1
        elif match.group() in _CLOSING:
            depth = max(0, depth - 1)
        elif s.startswith("\\begin", match.start()):
            depth += 1
        elif s.startswith("\\end{", match.start()):
            depth = max(0, depth - 1)
        elif depth == 0 and (hit := separator.match(s, match.start())):
            parts.append(s[start : hit.start()])
            separators.append(hit.group())
            start = at = max(hit.end(), at)
    return [*parts, s[start:]], separators
