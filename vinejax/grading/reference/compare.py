"""The verdict of VinePPO's grader on two lists of answers, on which published figures depend.

Reproduces `src/treetune/tasks/math_grader_minerva.py` (`eval_math`, `is_correct`, `math_equal`,
`symbolic_equal`) and `gsm8k.py` of McGill-NLP/VinePPO, with their mistakes: 200 equals 2, [0,1]
equals (0,1) and 3 hours equal 3 minutes. Use mode 'strict' for new work.

Differences: no text of a model is evaluated as code (`symbolic.py`), and a comparison that
overflows Python's stack or reaches a limit is False, where VinePPO's grader raises or hangs.
"""

import math
import re
from collections.abc import Callable

from vinejax.grading.extract import extract_reference, split_reference

TOLERANCE = 1e-3

Symbolic = Callable[[str, str], bool]

_BRACKETED = re.compile(r"[(\[].+[)\]]")
_MATRIX_STARTS = ("\\begin{pmatrix}", "\\begin{bmatrix}")
_MATRIX_ENDS = ("\\end{pmatrix}", "\\end{bmatrix}")
_BOXED_OR_SAID = ("boxed", "he answer is", "final answer is $", "```output")
_IN_A_COMMAND = re.compile(r"\\[a-zA-Z]+(?:\{[^{}]*\})?")
_PROSE = re.compile(r"\n|(?<![^\s])[A-Za-z']+[,:;]?(?:\s+[A-Za-z']+[,:;]?){2}")


class Undecided(Exception):
    """Raised where the rules that need no sympy cannot decide."""


def reference_answers(response: str, gold: str, problem: str = "") -> tuple[list[str], list[str]]:
    """The answers of a response and of `gold`, which is a worked solution or one bare answer.

    VinePPO's grader is given two solutions and extracts the answers of each. The same is done here
    if `gold` is a solution. A bare `gold` such as '90^\\circ', without a box or a sentence, is
    itself the answer. In this case a bare response is also taken as the answer.
    """
    if not _is_bare(gold):
        return extract_reference(response, problem), extract_reference(gold, problem)
    given = split_reference if _is_bare(response) else extract_reference
    return given(response, problem), split_reference(gold, problem)


def bare_answers(answer: str) -> list[str]:
    """The list of answers that VinePPO's grader reads in one answer, which is bare or boxed."""
    return extract_reference(answer) if "boxed{" in answer else split_reference(answer)


def _is_bare(text: str) -> bool:
    """Whether a text is only an answer: no box, no 'the answer is', no three words in a row."""
    stripped = text.strip()
    if not stripped or any(mark in stripped for mark in _BOXED_OR_SAID):
        return False
    return not _PROSE.search(_IN_A_COMMAND.sub(" \\ ", stripped))


def readable_reference(gold: str) -> bool:
    """Whether VinePPO's grader finds answers in `gold`, and none of them is blank."""
    answers = bare_answers(gold) if _is_bare(gold) else extract_reference(gold)
    return bool(answers) and all(answer.strip() for answer in answers)


def equal_gsm8k(prediction: str, gold: str) -> bool:
    """VinePPO's comparison of strings: commas are removed from the prediction only [sic]."""
    return prediction.strip().replace(",", "").lower() == gold.strip().lower()


def equal_reference(predictions: list[str], golds: list[str]) -> bool:
    """Whether the last len(golds) predictions match `golds` in any order.

    Has no time limit: call it in a process that can be killed. Source: `eval_math`, `is_correct`.
    """
    try:
        return _equal_lists(predictions, golds, symbolic_equal)
    except RecursionError:
        return False


def cheap_reference(predictions: list[str], golds: list[str]) -> bool | None:
    """The result of `equal_reference` if it needs no sympy, else None. Takes only microseconds."""
    try:
        return _equal_lists(predictions, golds, _undecided)
    except (Undecided, RecursionError):
        return None


def _undecided(prediction: str, gold: str) -> bool:
    raise Undecided


def _equal_lists(predictions: list[str], golds: list[str], symbolic: Symbolic) -> bool:
    golds = list(dict.fromkeys(golds))
    # If `golds` is empty, [-0:] keeps all predictions and none can match, as in VinePPO's code.
    predictions = list(dict.fromkeys(predictions))[-len(golds) :]
    return _matching(predictions, golds, symbolic)


def _matching(predictions: list[str], golds: list[str], symbolic: Symbolic) -> bool:
    matched_predictions, matched_golds = set(), set()
    for i, prediction in enumerate(predictions):
        for j, gold in enumerate(golds):
            if equal_element(prediction, gold, symbolic):
                matched_predictions.add(i)
                matched_golds.add(j)
    return len(matched_predictions) == len(predictions) and len(matched_golds) == len(golds)


def equal_element(prediction: str, gold: str, symbolic: Symbolic) -> bool:
    """Whether two answers are equal, where the order of the sets in a union does not matter.

    `symbolic` compares two formulas.
    """
    if "\\cup" in prediction and "\\cup" in gold:
        return _matching(prediction.split("\\cup"), gold.split("\\cup"), symbolic)
    numbers = _float(prediction.replace(",", "")), _float(gold.replace(",", ""))
    if None not in numbers and abs(numbers[0] - numbers[1]) < TOLERANCE:  # pyright: ignore
        return True
    return math_equal(prediction, gold, symbolic)


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _number(text: str) -> float | None:
    """A number's value, commas ignored; 0.23 for '23%' and '23\\%'. None if `text` is no number."""
    text = text.replace(",", "")
    number = _float(text)
    if number is None and text.endswith("%"):
        number = _float(text[:-1].removesuffix("\\"))
        return None if number is None else number / 100
    return number


def math_equal(prediction: str, gold: str, symbolic: Symbolic) -> bool:
    """Whether two answers are equal as strings, as numbers, part by part or as formulas.

    Numbers may differ by a factor of 100. `symbolic` compares two formulas.
    """
    if prediction == gold:
        return True
    given, wanted = _number(prediction), _number(gold)
    if given is not None and wanted is not None:
        near = (wanted / 100, wanted, wanted * 100)
        return any(math.isclose(number, given, abs_tol=TOLERANCE) for number in near)
    if not prediction:
        return False
    prediction, gold = prediction.strip(), gold.strip()
    if _BRACKETED.match(prediction) and _BRACKETED.match(gold):
        if _equal_parts(prediction[1:-1].split(","), gold[1:-1].split(","), symbolic):
            return True
    if _is_matrix(prediction) and _is_matrix(gold):
        rows, gold_rows = _rows(prediction), _rows(gold)
        pairs = zip(rows, gold_rows, strict=False)
        if len(rows) == len(gold_rows) and all(_equal_parts(*pair, symbolic) for pair in pairs):
            return True
    return _equal_equations(prediction, gold, symbolic) or symbolic(prediction, gold)


def _equal_parts(parts: list[str], gold_parts: list[str], symbolic: Symbolic) -> bool:
    if len(parts) != len(gold_parts):
        return False
    pairs = zip(parts, gold_parts, strict=True)
    return all(math_equal(part, gold_part, symbolic) for part, gold_part in pairs)


def _is_matrix(text: str) -> bool:
    return text.startswith(_MATRIX_STARTS) and text.endswith(_MATRIX_ENDS)


def _rows(matrix: str) -> list[list[str]]:
    inside = matrix[len(_MATRIX_STARTS[0]) : -len(_MATRIX_ENDS[0])]
    return [row.strip().split("&") for row in inside.split("\\\\") if row.strip()]


def _equal_equations(prediction: str, gold: str, symbolic: Symbolic) -> bool:
    """Whether left - right agrees up to sign in two equations, or the answers are 'x = 5' and 5."""
    sides, gold_sides = prediction.split("="), gold.split("=")
    if len(sides) == 2 and len(gold_sides) == 2:
        left = f"{sides[0].strip()} - ({sides[1].strip()})"
        right = f"{gold_sides[0].strip()} - ({gold_sides[1].strip()})"
        return symbolic(left, right) or symbolic(f"-({left})", right)
    if len(sides) == 2 and len(sides[0].strip()) <= 2 and len(gold_sides) == 1:
        return math_equal(sides[1], gold, symbolic)
    if len(gold_sides) == 2 and len(gold_sides[0].strip()) <= 2 and len(sides) == 1:
        return math_equal(prediction, gold_sides[1], symbolic)
    return False


def symbolic_equal(prediction: str, gold: str) -> bool:
    """Whether sympy finds two LaTeX formulas equal. It is slow, without a time limit."""
    from vinejax.grading.reference import symbolic as sympy_side

    try:
        a, b = sympy_side.latex_to_text(prediction), sympy_side.latex_to_text(gold)
    except sympy_side.Refused:
        return False
    if not (sympy_side.is_allowed(a) and sympy_side.is_allowed(b)):
        return False
    return sympy_side.difference_is_zero(a, b) or sympy_side.nearly_equal(a, b)
