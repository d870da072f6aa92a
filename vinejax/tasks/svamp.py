"""SVAMP: 1,000 word problems of one step, varied so that matching patterns does not solve them.

Patel, Bhattamishra and Goyal 2021, https://arxiv.org/abs/2103.07191. For evaluation only.
"""

from typing import Any

from vinejax.core.settings import DataConfig
from vinejax.tasks.answer_sets import AnswerSet


def make(data: DataConfig) -> AnswerSet:
    return AnswerSet("svamp", data.path, ("Body", "Question"), question_and_answer)


def question_and_answer(row: dict[str, Any]) -> tuple[str, str]:
    """(the body and question of a row as one text, its answer)."""
    body, question, answer = row["Body"].strip(), row["Question"].strip(), row.get("Answer")
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        raise ValueError(f"field 'Answer' must be a number, found {answer!r}")
    if not body.endswith((".", "?", "!")):  # some bodies lack a full stop
        body += "."
    return f"{body} {question}", str(int(answer) if answer % 1 == 0 else answer)
