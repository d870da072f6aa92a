r"""Answers as texts, and the answer within a worked solution: after '####' or in \boxed{}."""

import decimal
import re

from vinejax.grading.extract import MARKER
from vinejax.grading.strict.boxes import last_boxes

EMPTY_LAST = re.compile(r"(?s)\\boxed\s*\{\s*\}(?!.*\\boxed)")


def boxed_answer(solution: str) -> str | None:
    r"""The contents of the last \boxed{...} or \boxed 5 of a solution.

    If 'and', 'or' or a comma joins further boxes to the last box, their contents are included.

    None if there is no box, or if the last box is empty or never closed. The grader reads the boxes
    of a response in the same way, but skips empty boxes.
    """
    return None if EMPTY_LAST.search(solution) else last_boxes(solution)


def written(value: str | int | float | decimal.Decimal) -> str:
    """The value as a text without surrounding blanks, where a float such as 3.0 is written '3'.

    A decimal number of a Parquet file keeps its digits, as 2.50, and has no exponent.
    """
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return str(value).strip()


def bare_answer(answer: str) -> str:
    """The text after the last '####', else the contents of the last box, else the whole text."""
    _, marker, marked = answer.rpartition(MARKER)
    return marked.strip() if marker else boxed_answer(answer) or answer
