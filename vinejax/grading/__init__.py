"""Grading: whether an answer is correct. No text of a model is run, and every call ends.

- `extract.py`: finds the answer in a response, by VineJAX's rule or by that of VinePPO's code.
  `announced.py`, `chosen.py`, `clauses.py` and `prose.py` are parts of VineJAX's rule.
- `strict/`: mode 'strict', the verdict of a mathematician.
- `reference/`: mode 'reference', the verdict of VinePPO's code, mistakes included.
- `pool/`: worker processes with limits of time and memory; `Grader` is the pool.

docs/tasks.md lists the forms of answers that 'strict' reads.
"""

import functools

from vinejax.grading.extract import Style, extract_answer
from vinejax.grading.pool.grader import Grader, Verdict
from vinejax.grading.pool.jobs import Mode

__all__ = [
    "Grader",
    "Verdict",
    "extract_answer",
    "grade",
    "grade_response",
    "readable",
    "shared_grader",
]


def grade(prediction: str, gold: str, mode: Mode = "strict", style: Style = "math") -> bool:
    """Whether two answers are equal; each is bare, between dollar signs or in `\\boxed{..}`.

    False if the comparison takes more than 5 seconds. For many pairs use a `Grader`, which compares
    in parallel and tells a timeout from a wrong answer. Raises ValueError for an unknown mode.

    Example:
      >>> vinejax.grade(r"\\frac{1}{2}", "0.5")
      True
    """
    return shared_grader(mode, style).grade_many([(prediction, gold)])[0].correct


def grade_response(
    response: str, gold: str, mode: Mode = "strict", style: Style = "math", problem: str = ""
) -> bool:
    """Whether the answer in a response equals `gold`, the data set's answer.

    In mode 'strict' `gold` is a bare answer, and the result of `extract_answer` must equal it. In
    mode 'reference' VinePPO's rules extract answers from both texts: `gold` is a worked solution or
    a bare answer (`reference_answers`), and `problem`, the problem's text, tells whether answers
    are 'separated by commas'. Time limit and errors are as for `grade`.

    Example:
      >>> vinejax.grade_response(r"so it is $\\boxed{(1, 2)}$.", "(1,2)")
      True
    """
    grader = shared_grader(mode, style)
    return grader.grade_responses([(response, gold, problem)])[0].correct


def readable(answer: str, mode: Mode = "strict", style: Style = "math") -> bool:
    """Whether the grader can read `answer` within 5 seconds (see `Grader.readable_many`)."""
    return shared_grader(mode, style).readable_many([answer])[0].correct


@functools.cache
def shared_grader(mode: Mode = "strict", style: Style = "math") -> Grader:
    """The grader that all callers with this mode and style share.

    It has one worker, which starts when a pair first needs it and ends with the interpreter.
    """
    return Grader(workers=1, mode=mode, style=style)
