"""Finds the answer in a response, by VineJAX's rule or by that of VinePPO's code.

`extract_answer` is VineJAX's rule. `extract_reference` and `reference_gsm8k` reproduce
`extract_math_answer` in `src/treetune/tasks/math_answer_exctraction.py` and
`src/treetune/tasks/gsm8k.py` of McGill-NLP/VinePPO.

`extract_answer` differs from these: it takes only the last candidate, and none from the thinking;
boxes or announced formulas joined by 'and' or commas are one list; `\\boxed 5` and `\\fbox{5}` are
boxes, and an unclosed box counts unless it holds a word; formulas and numbers are taken whole,
but not with the minus of a difference ('3-5' gives 5); `####` counts only for GSM8K.
"""

import re
from typing import Literal

from vinejax.core.text import THINKING
from vinejax.grading.reference.normalise import normalise
from vinejax.grading.strict.english.words import is_changed
from vinejax.grading.strict.latex import PLACEHOLDER, last_boxes

Style = Literal["math", "gsm8k"]
MARKER = "####"

_TAG = re.compile(
    r"(?is)<(?:final_?)?answer>((?:(?!<(?:final_?)?answer>).)*?)(?:</(?:final_?)?answer>|\Z)"
)
_CONTENT = re.compile(r"[^\W_]|[∞∅√]")
_PHRASES = (
    re.compile(r"(?i)final\s+answers?(?:\s*(?:(?:is|are)\b|:|\*\*)|[\s*_]*[:：])"),
    re.compile(r"(?i)(?:answers?|(?:option|choice)(?=\s+is\b))(?:\s*(?:is|are)\b|[\s*_]*[:：=])"),
)
# 'Option B is correct.', 'I choose B.', 'It must be (B).'
_CHOSEN = re.compile(
    r"(?<![\w(])(?:[Oo]ption\s+|[Cc]hoice\s+|[Aa]nswer\s+)?(\(?[A-H]\)?)\s+is\s+"
    r"(?:the\s+)?(?:correct|(?:right\s+)?(?:answer|choice|option))\b"
    r"|\b(?:choose|pick|select)\s+(\(?[A-H]\)?)(?!\w)|((?<=\b(?:is|be)\s)[A-H]|\([A-H]\))[\s.*]*\Z"
)
# 'The answer is correct' judges an answer and gives none.
_JUDGED = re.compile(
    r"(?i)(?:[a-z]+ly |indeed |also )?(?:correct|right|valid|verified|confirmed|consistent"
    r"|reasonable)(?:,| and\b| with\b| by\b|$)"
)
_OPENERS = {"$$": "$$", "$": "$", "\\(": "\\)", "\\[": "\\]"}
_SENTENCE_END = re.compile(r"\n|[.!?](?=\s|$)|(?<=\S)\s+(?:because|since|as|so)\s")
_COMMAND = re.compile(r"\\[a-zA-Z]+(?:\{[^{}]*\})?")
_WORD = re.compile(r"(?<!\S)[A-Za-z']{2,}(?![^\s.,;:!?])")
_JOINT = re.compile(r"\s*(?:[,;]\s*(and|or)\b|[,;&]|(and|or)\b)\s*")
_SPAN = re.compile(r"\$([^$]+)\$")
_OPEN_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{")
_EMPTY_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{(?:\s|\\text\s*\{\s*\}|\.{3})*\}")
_FORMULA_END = re.compile(r"\$|\\\]|\\\)|\n|\Z")
_NUMBER = re.compile(
    r"(?i)(?:(?<![\w)\]}])(?:[-−]|(?<![\d)\]}] )[-−]\s))?"
    r"(?:\d+(?::\d+)+(?:\s?[ap](?:m\b|\.m\.?))?|\d+(?: : \d+)+|\d+ \d+/\d+"
    r"|(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,3}(?: \d{3})+(?!\d)|\d+,\d\d(?![\d,.])|\d+)"
    r"(?:\.\d+)?(?:/\d+)?%?|\.\d+(?:/\d+)?%?)"
)
# A term of a formula without delimiters, and the formula that it is part of: 7\\sqrt3, 2^12 - 1.
_FUNCTION = r"(?<![A-Za-z])(?:sin|cos|tan|cot|sec|csc|log|ln|exp)"
_GROUP = r"(?:[^\s=≈<>{]|\{(?:[^{}]|\{[^{}]*\})*\})*"
_PAIR = r"[(\[][-−\d./ ]+[,;](?!\d{3}\b)[-−\d.,;/ ]+[)\]]"
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
    rf"|[\w./+*−-]\(|\||\.\d+\.\.|{_FUNCTION}\s|\smod\s|negative\s|{_SCALE}|\A{_PAIR}"
    r"|(?<![A-Za-z\d])\d+[a-cefijknp-rt-z](?![A-Za-z\d])"
    r"|(?<![A-Za-z])[b-z]\s?[-−+*/]\s?\d|\d\s?[-−+*/]\s?[b-z](?![A-Za-z])"
)
_METRES = re.compile(r"(?<=\d)\s?m(?:\^\{?[23]\}?|[²³])")  # elsewhere m is a variable
_FORMULA = re.compile(
    r"(?s)(?<!\\)\$\$(.+?)(?<!\\)\$\$|(?<!\\)\$((?:[^$\\]|\\.)+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]"
)
_MAX_TAIL = 1000  # characters after an announcement
_MAX_PHRASES = 20  # announcements examined, starting with the last
_MAX_WORDS = 3  # words beside a number in an answer: '5 square feet and'
_MAX_RUN = 200  # characters on each side of the last number
# More backslashes in a row than any answer has; patterns that start with one take quadratic time.
_BACKSLASHES = re.compile(r"\\{9,}")

_REFERENCE_NUMBER = re.compile(r"-?\d*\.?\d+")
_REFERENCE_AND = re.compile(r"\\text\{\s*and\s*\}")


def extract_answer(text: str, style: Style = "math") -> str | None:
    """The last answer in a response, without its box, dollar signs and full stop, or None.

    Only the text after `</think>` counts (none if thinking does not end), and in it only the last
    `<answer>`, unless a box follows it. The answer is the first of these that exists: the text
    after the last `####` (style 'gsm8k' only); the last box and the boxes joined to it, or the
    contents of a last box that never closes; the text after the last 'final answer is' that
    announces an answer; the same for 'answer is'; the letter of 'option B is correct'; the whole
    text if it has no words or is an `<answer>`; the last formula between delimiters, if no number
    follows it (style 'math' only); the last number; the whole text if it is one word. Never raises.

    Example:
      >>> vinejax.extract_answer("so 3 + 4 = 7.\\n#### 7", style="gsm8k")
      '7'
    """
    text = after_thinking(text)
    tagged = _tagged(text)
    text = tagged or text
    if style == "gsm8k" and MARKER in text:
        lines = map(str.strip, text.rpartition(MARKER)[2].split("\n"))
        return next(filter(None, lines), None)
    text = _BACKSLASHES.sub("", text) if "\\" * 9 in text else text
    boxed = last_boxes(text)
    if boxed is not None:
        return boxed.strip()
    text = _EMPTY_BOX.sub("", text)
    if rest := _broken_box(text):
        return rest
    announced, judged = _announced(text)
    if announced:
        return announced
    if chosen := _CHOSEN.findall(text):
        return "".join(chosen[-1])
    words = _words(text)
    if words == 0 or tagged:
        return _after_phrase(text.strip()) if words and tagged else _undressed(text) or None
    if style == "math" and (formula := _last_formula(text)):
        return formula
    return _last_number(text) or judged or (_undressed(text) if words == 1 else None)


def marked_answer(text: str) -> str | None:
    """The last answer that a response marks as such, however many lines it has, or None.

    In the text after `</think>` this is the last `<answer>` if no box follows it; else the last
    box and the boxes joined to it; else the text after the last `####`. Never raises.
    """
    text = after_thinking(text)
    tagged = _tagged(text)
    boxed = last_boxes(_BACKSLASHES.sub("", tagged or text))
    if boxed is None and not tagged:
        _, marker, rest = text.rpartition(MARKER)
        return rest.strip() if marker else None
    return (tagged if boxed is None else boxed).strip()


def after_thinking(text: str) -> str:
    """The text after the last `</think>` or the like; '' if thinking starts and does not end."""
    tags = [*THINKING.finditer(text)] if "<" in text or "◁" in text else []
    if not tags:
        return text
    return text[tags[-1].end() :] if tags[-1][1] else ""


def _tagged(text: str) -> str:
    """The contents of the last non-empty `<answer>`; '' if there is none, or a box follows it."""
    for tag in reversed([*_TAG.finditer(text)] if "<" in text else []):
        if not PLACEHOLDER.fullmatch(tag[1]):
            return "" if last_boxes(text[tag.end() :]) else tag[1]
    return ""


def _broken_box(text: str) -> str | None:
    """The contents of an unclosed box, which end where the formula ends.

    None if there is no such box, or if the contents have neither a digit nor `\\`.
    """
    boxes = list(_OPEN_BOX.finditer(text))
    rest = _undressed(_FORMULA_END.split(text[boxes[-1].end() :], 1)[0]) if boxes else ""
    return rest if re.search(r"[\d\\]", rest) else None


def _announced(text: str) -> tuple[str | None, str | None]:
    """The last answer that 'answer is' or a similar phrase announces, and the last judgement.

    A judgement, such as 'correct', is announced like an answer. Each of the two is None if
    the text has none.
    """
    judged = None
    for phrase in _PHRASES:
        ends = [announcement.end() for announcement in phrase.finditer(text)][-_MAX_PHRASES:]
        for end in reversed(ends):
            answer = _after_phrase(text[end : end + _MAX_TAIL])
            if not _CONTENT.search(answer):
                continue
            if not _JUDGED.match(answer):
                return answer, judged
            judged = judged or answer
    return None, judged


def _words(text: str) -> int | None:
    """The number of plain words; None if the text is long or has a box or more than one line."""
    text = text.strip()
    if "\n" in text or "boxed" in text or len(text) > _MAX_TAIL:
        return None
    return len(_WORD.findall(_COMMAND.sub(" \\ ", text)))


def _undressed(text: str) -> str:
    """Drop dollar signs and punctuation at both ends of a text.

    The point of `.5` and the dots of `0.33...` stay.
    """
    text = re.sub(r"^[\s*$,;:]*(?:\.(?!\d)[\s*$,;:]*)?", "", text)
    bare = text.rstrip(" \t\n*$,;:.").strip()
    goes_on = text.startswith("..", len(bare)) and re.search(r"\.\d+\Z", bare)
    return f"{bare}..." if goes_on else bare


def _after_phrase(tail: str) -> str:
    """The answer in `tail`, the text that follows 'answer is'.

    Formulas at the start of `tail` are the answer. Without them it is in the first sentence.
    """
    tail = tail.lstrip(" \t\n:：*=")
    if formulas := _formulas_at_start(tail):
        return formulas
    end = _SENTENCE_END.search(tail)
    sentence = tail[: end.start() if end else None]
    # 'The final answer: the largest $n$ is 34.'
    sentence = sentence.rpartition(" is ")[2]
    sentence = _last_spans(sentence) or sentence
    numbers = _NUMBER.findall(sentence)
    if len(numbers) == 1 and (_words(sentence) or 0) > _MAX_WORDS:
        return _last_number(sentence) or _undressed(sentence)  # 'Jane grew it 3 hours ago.'
    return _undressed(sentence)


def _formulas_at_start(tail: str) -> str:
    """The formulas at the start of a text, separated by commas; '' if it begins with no formula.

    Several formulas are taken only if they form a list.
    """
    formulas: list[str] = []
    joints: list[bool] = []
    at = end = 0
    while opener := next((o for o in _OPENERS if tail.startswith(o, at)), None):
        inside, closed, _ = tail[at + len(opener) :].partition(_OPENERS[opener])
        if not closed:
            break
        formulas.append(inside.strip())
        end = at + len(opener) + len(inside) + len(closed)
        joint = _JOINT.match(tail, end)
        if not joint:
            break
        at = joint.end()
        joints.append(any(joint.groups()))
    stop = _SENTENCE_END.match(tail, end)
    is_list = any(joints[: len(formulas) - 1]) or stop or end == len(tail)
    return ", ".join(formulas if is_list else formulas[:1])


def _last_spans(sentence: str) -> str:
    """The contents of the last `$..$` and of those joined to it, separated by commas.

    'and', 'or' and commas can join them. The result is '' if there is no `$..$`.
    """
    spans = list(_SPAN.finditer(sentence))
    contents, joined = [], False
    for i, span in enumerate(reversed(spans)):
        if i:
            joint = _JOINT.fullmatch(sentence, span.end(), spans[-i].start())
            joined = joined or bool(joint and any(joint.groups()))
            if not joint or not joined:
                break
        contents.append(span[1])
    return ", ".join(reversed(contents))


def _last_formula(text: str) -> str | None:
    """The last formula between delimiters; None if a number follows it or the text has a box."""
    tail = text[-_MAX_TAIL:]
    formulas = list(_FORMULA.finditer(tail))
    if not formulas or "boxed" in text or _NUMBER.search(tail, formulas[-1].end()):
        return None
    formula = _undressed(next(filter(None, formulas[-1].groups()), ""))
    return formula if re.search(r"[A-Za-z\d]", formula) else None


def _last_number(text: str) -> str | None:
    """The last number of a text as written, or the formula that it is part of: `7.5e4`, `2^12`.

    None if the words before the number change its value, as in 'half of 16'.
    """
    text = _METRES.sub("", text)
    last = next(reversed([*_NUMBER.finditer(text)]), None)
    if last is None:
        return None
    start = max(text.rfind("\n", 0, last.start()) + 1, last.start() - _MAX_RUN)
    line = text[start : last.end() + _MAX_RUN].partition("\n")[0]
    if is_changed(text[start : last.start()]):  # 'anything but 8', 'half of 16'
        return None
    run = next((r.group() for r in _RUN.finditer(line) if r.end() >= last.end() - start), "")
    if _BOUND.search(run):
        return _undressed(run if run.count("(") == run.count(")") else run.strip("()"))
    return re.sub(r"^-\s", "-", last.group().replace("−", "-"))


def extract_reference(text: str, problem: str = "") -> list[str]:
    """The normalised answers that VinePPO's code finds in a MATH response or solution, if any.

    If `problem`, the problem's text, says 'separated by commas', an answer without brackets is
    split at its commas. Source: `extract_math_answer`.
    """
    answers = []
    for candidate in _reference_candidates(text):
        answers += split_reference(candidate, problem)
    return answers


def split_reference(candidate: str, problem: str = "") -> list[str]:
    """The normalised answers in the first line of `candidate`, split as in `extract_reference`."""
    line = candidate.strip().split("\n")[0].lstrip(":").rstrip(".").rstrip("/")
    answer = normalise(line)
    if "separated by commas" in problem and not any(bracket in answer for bracket in "()[]"):
        return [part.strip() for part in answer.split(",")]
    return [part.strip() for part in _REFERENCE_AND.split(answer)]


def _reference_candidates(text: str) -> list[str]:
    if "final answer is $" in text and "$. I hope" in text:
        return [text.split("final answer is $", 1)[1].split("$. I hope", 1)[0]]
    if "boxed" in text:
        return _reference_boxes(text)
    if "he answer is" in text:
        return [text.rpartition("he answer is")[2]]
    output = text.rpartition("```output")[2].split("```")[0].strip() if "```output" in text else ""
    if output:
        return [output]
    return _REFERENCE_NUMBER.findall(text.replace(",", ""))[-1:]


def _reference_boxes(text: str) -> list[str]:
    """The text in each `boxed{..}`, with the closing brace if a `%` follows that brace [sic]."""
    boxes = []
    for piece in text.split("boxed{")[1:]:
        depth = 0
        for i, character in enumerate(piece):
            depth += (character == "{") - (character == "}")
            if depth < 0:
                boxes.append(piece[: i + 1 if piece[i + 1 : i + 2] == "%" else i])
                break
    return boxes


def reference_gsm8k(text: str) -> str | None:
    """The text after the last `####`; None if there is no `####`. Source: `gsm8k.py`."""
    _, marker, answer = text.rpartition(MARKER)
    return answer.strip() if marker else None
