"""Former place of `vinejax.grading`, kept so that tasks that import from here still do."""

from vinejax.grading import (
    Grader,
    GraderStats,
    Verdict,
    extract_answer,
    grade,
    grade_response,
    readable,
)

__all__ = [
    "Grader",
    "GraderStats",
    "Verdict",
    "extract_answer",
    "grade",
    "grade_response",
    "readable",
]
