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
from vinejax.grading.announced import after_phrase, announced
from vinejax.grading.chosen import chosen
from vinejax.grading.dress import undressed, without_emphasis, words_of
from vinejax.grading.prose import last_formula, last_number
from vinejax.grading.reference.normalise import normalise
from vinejax.grading.strict.boxes import PLACEHOLDER, last_boxes, last_boxes_to
from vinejax.grading.strict.english.denials import DENIED, mask_denied

Style = Literal["math", "gsm8k"]
MARKER = "####"

_TAG = re.compile(
    r"(?is)<(?:final_?)?answer>((?:(?!<(?:final_?)?answer>).)*?)(?:</(?:final_?)?answer>|\Z)"
)
_SENTENCE_END = re.compile(r"[.!?](?=\s)|\n")
_VALUE = re.compile(r"[\d$\\]")
_OPEN_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{")
_EMPTY_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{(?:\s|\\text\s*\{\s*\}|\.{3})*\}")
_FORMULA_END = re.compile(r"\$|\\\]|\\\)|\n|\Z")
# More backslashes in a row than any answer has; patterns that start with one take quadratic time.
_BACKSLASHES = re.compile(r"\\{9,}")

_REFERENCE_NUMBER = re.compile(r"-?\d*\.?\d+")
_REFERENCE_AND = re.compile(r"\\text\{\s*and\s*\}")


def extract_answer(text: str, style: Style = "math") -> str | None:
    """The answer that a response states last, without its box, dollar signs and full stop, or None.

    Only the text after `</think>` counts (none if thinking does not end). Explicit statements are
    `<answer>`, a box with the boxes joined to it, 'the answer is 5', 'Answer: 5' and 'option B is
    correct'. The last of them is the answer, but after a box or an `<answer>` only those that state
    a value or a choice count. With style 'gsm8k' the text after the last `####` comes first.

    Without an explicit statement the answer is the first of these that exists: the contents of a
    last box that never closes; a choice on the last line; the whole text if it has no words; the
    last formula between delimiters, if no number follows it (style 'math' only); the last number;
    the whole text if it is one word. What a text denies ('not 12', '12 is wrong') is no answer.
    Clauses that say more about an answer are no part of it ('64, which is the total').

    Never raises.

    Example:
      >>> vinejax.extract_answer("so 3 + 4 = 7.\\n#### 7", style="gsm8k")
      '7'
    """
    text = after_thinking(text)
    text = _BACKSLASHES.sub("", text) if "\\" * 9 in text else text
    tagged, rest = _last_tag(text)
    if tagged and (last_boxes(rest) or _stated_after(rest, tagged)):
        tagged = ""
    text = tagged or text
    if style == "gsm8k" and MARKER in text:
        lines = map(str.strip, text.rpartition(MARKER)[2].split("\n"))
        return without_emphasis(next(filter(None, lines), "")) or None
    if boxed := last_boxes_to(text):
        return _stated_after(text[boxed[1] :], boxed[0]) or boxed[0].strip()
    text = _EMPTY_BOX.sub("", text)
    if rest := _broken_box(text):
        return rest
    masked = mask_denied(text)
    found, judged, start = announced(masked)
    choice = chosen(masked, found.answer if found and found.is_firm else "")
    if found and not (choice and choice.is_explicit and choice.start > found.start):
        return found.answer
    if choice:
        return choice.answer
    if start:
        masked = masked[start:]  # what stands before 'The answer is not 12' is no answer
    words = words_of(masked)
    if words == 0 or tagged:
        return after_phrase(masked.strip(), True) if words and tagged else undressed(masked) or None
    if _ends_in_denial(masked):
        return None
    return (
        _in_prose(re.sub(f"{DENIED}+", "\n", masked), style)
        or judged
        or (undressed(masked) if words == 1 else None)
    )


def _in_prose(text: str, style: Style) -> str | None:
    """The last formula of a text that announces no answer, or its last number."""
    return style == "math" and last_formula(text) or last_number(text)


def _stated_after(text: str, before: str) -> str | None:
    """The value or choice that the text after a box or tag states explicitly; None without one.

    `before` is the content of the box or tag.
    """
    masked = mask_denied(text)
    found, _, _ = announced(masked)
    choice = chosen(masked, before)
    stated = [found] if found and found.is_firm else []
    stated += [choice] if choice and choice.is_explicit else []
    return max(stated, key=lambda statement: statement.start).answer if stated else None


def _ends_in_denial(masked: str) -> bool:
    """Whether the last sentence with an answer only denies one, as 'It is not 12.' does."""
    at = masked.rfind(DENIED)
    if at < 0:
        return False
    start = max((end.end() for end in _SENTENCE_END.finditer(masked, 0, at)), default=0)
    return not _VALUE.search(masked, start)


def marked_answer(text: str) -> str | None:
    """The last answer that a response marks as such, however many lines it has, or None.

    In the text after `</think>` this is the last `<answer>` if no box follows it; else the last
    box and the boxes joined to it; else the text after the last `####`. Never raises.
    """
    text = after_thinking(text)
    tagged, rest = _last_tag(text)
    tagged = "" if tagged and last_boxes(rest) else tagged
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


def _last_tag(text: str) -> tuple[str, str]:
    """The contents of the last non-empty `<answer>`, and the text after it; both '' without one."""
    for tag in reversed([*_TAG.finditer(text)] if "<" in text else []):
        if not PLACEHOLDER.fullmatch(tag[1]):
            return tag[1], text[tag.end() :]
    return "", ""


def _broken_box(text: str) -> str | None:
    """The contents of an unclosed box, which end where the formula ends.

    None if there is no such box, or if the contents have neither a digit nor `\\`.
    """
    boxes = list(_OPEN_BOX.finditer(text))
    rest = undressed(_FORMULA_END.split(text[boxes[-1].end() :], 1)[0]) if boxes else ""
    return rest if re.search(r"[\d\\]", rest) else None


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
