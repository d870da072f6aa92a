"""Grading: is this answer the gold one? Nothing that a model wrote is run, and all of it ends.

- `extract.py`: the answer in a response, by our rule and by the reference's.
- `strict/`: mode 'strict', the verdict of a mathematician.
- `reference/`: mode 'reference', the verdict of the reference's code, mistakes included.
- `pool/`: worker processes with limits of time and memory; `Grader` is the pool.

The forms of answers that 'strict' reads (docs/tasks.md lists them) are frozen: no new ones.
"""

import functools

from vinejax.grading.extract import Style, extract_answer
from vinejax.grading.pool.grader import Grader, GraderStats, Verdict
from vinejax.grading.pool.jobs import Mode

__all__ = [
    "Grader",
    "GraderStats",
    "Verdict",
    "extract_answer",
    "grade",
    "grade_response",
    "readable",
]


def grade(prediction: str, gold: str, mode: Mode = "strict", style: Style = "math") -> bool:
    """Whether two answers are equal; each is bare or stands in `$..$` or `\\boxed{..}`.

    Takes a worker's 5 seconds at most, and is False then. For many pairs use a `Grader`, which
    compares in parallel and tells a timeout from a no. Raises ValueError for an unknown mode.
    """
    return _shared_grader(mode, style).grade_many([(prediction, gold)])[0].correct


def grade_response(
    response: str, gold: str, mode: Mode = "strict", style: Style = "math", problem: str = ""
) -> bool:
    """Whether the answer that a response gives is the gold one.

    'strict': `extract_answer` of the response, against a bare gold. 'reference': the reference's
    extraction from both sides, the gold being a worked solution or else one bare answer
    (`reference_answers`); `problem` is the problem's text, which it searches for 'separated by
    commas'. Time and errors as for `grade`.
    """
    grader = _shared_grader(mode, style)
    return grader.grade_responses([(response, gold, problem)])[0].correct


def readable(answer: str, mode: Mode = "strict", style: Style = "math") -> bool:
    """Whether a gold can be graded against: see `Grader.readable_many`. Bounded as `grade` is."""
    return _shared_grader(mode, style).readable_many([answer])[0].correct


@functools.cache
def _shared_grader(mode: Mode, style: Style) -> Grader:
    """A grader with one worker, that starts when a pair first needs it and ends with Python."""
    return Grader(workers=1, mode=mode, style=style)
